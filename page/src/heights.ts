/** The heights of many rows: where each stands and which one is at a place, each in a few steps (a Fenwick tree). */
export class Heights {
  count = 0;
  private sizes = new Float64Array(0);
  private sums = new Float64Array(1);

  /** `guess` is the height of a row that was not measured. */
  constructor(private readonly guess: number) {}

  /** Sets how many rows there are; those that were measured keep their heights. */
  resize(count: number): void {
    if (count === this.count) return;
    const sizes = new Float64Array(count).fill(this.guess);
    sizes.set(this.sizes.subarray(0, Math.min(count, this.count)));
    const sums = new Float64Array(count + 1);
    for (let place = 1; place <= count; place++) {
      sums[place] = (sums[place] ?? 0) + (sizes[place - 1] ?? 0);
      const above = place + (place & -place);
      if (above <= count) sums[above] = (sums[above] ?? 0) + (sums[place] ?? 0);
    }
    [this.count, this.sizes, this.sums] = [count, sizes, sums];
  }

  /** Sets the height of a row; returns by how much it grew. */
  set(place: number, size: number): number {
    const more = size - (this.sizes[place] ?? size);
    if (!more) return 0;
    this.sizes[place] = size;
    for (let each = place + 1; each <= this.count; each += each & -each) this.sums[each] = (this.sums[each] ?? 0) + more;
    return more;
  }

  of(place: number): number {
    return this.sizes[place] ?? this.guess;
  }

  /** Returns where a row begins; of the row behind the last, how high all are. */
  top(place: number): number {
    let sum = 0;
    for (let each = Math.min(place, this.count); each > 0; each -= each & -each) sum += this.sums[each] ?? 0;
    return sum;
  }

  /** Returns the row that is at a height; the last one below all. */
  at(height: number): number {
    let [place, left] = [0, height];
    for (let step = 2 ** Math.floor(Math.log2(Math.max(1, this.count))); step >= 1; step /= 2) {
      const next = place + step;
      if (next <= this.count && (this.sums[next] ?? 0) <= left) {
        place = next;
        left -= this.sums[next] ?? 0;
      }
    }
    return Math.max(0, Math.min(place, this.count - 1));
  }
}
