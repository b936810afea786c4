"""Words by which results and command lines are read; hints, of which none decides alone.

English is read best; of other languages the words for no and for failures are known.
"""

from __future__ import annotations

from typing import Final


def words_of(text: str) -> frozenset[str]:
    """Return the words of a text that has blanks between them."""
    return frozenset(text.split())


ENVELOPE: Final = words_of(
    "a an the of in on at to for from by with and or is are was were be been has have had it its this that there"
    " here your you i we no not none any all as if so but again still yet now already nothing null true false ok"
    " okay done success successful successfully succeeded result results status code data message output stdout"
    " stderr exit error errors found match matches matched hit hits item items total count rows row empty please"
    " try could couldn did didn does doesn t can cannot can't s zero 0 yes response reply returned returning see"
    " info note warning trace span request req attempt poll look call id ms took elapsed time unchanged same noted"
    " acknowledged recorded received thanks thank sorry unable query search searched"
)
"""Words that frame an answer and say nothing about the matter."""

YES: Final = words_of(
    "ok okay done success successful successfully succeeded true yes noted acknowledged recorded received thanks waited"
)
"""Words of an answer that says that all went well."""

NO_WORDS: Final = words_of(
    "no not none nothing zero empty unknown missing without cannot null keine kein nicht nichts aucun aucune rien"
    " ningun ninguna nada geen niets couldn didn doesn"
)
"""Words of an answer that says no."""

RED_WORDS: Final = words_of(
    "fail failed fails failure failures failing error errors exception traceback mismatch invalid denied refused"
    " forbidden unauthorized timed timeout red rejected violation violations broken conflict unreachable"
    " fehlgeschlagen fehler abgelehnt échec echec erreur fallo falló"
)
"""Words of an answer that says that something failed."""

FINAL_WORDS: Final = words_of(
    "failed canceled cancelled aborted terminated killed dead lost crashed expired rejected declined stopped gone"
    " exited deadlettered"
)
"""Words for a state that something does not leave any more."""

CHANGED: Final = words_of(
    "written wrote saved updated created deleted removed moved renamed applied sent replaced changed inserted"
    " edited added patched modified restarted deployed committed scheduled posted uploaded assigned stored"
    " submitted booked started enabled disabled merged pushed copied installed closed granted reserved overwritten"
    " reverted restored rebooted published registered adjusted set delivered reloaded tagged linked archived"
    " confirmed ordered replacement replacements"
)
"""Words of an acknowledgement that something was changed."""

BEFORE: Final = words_of("sudo time env nohup nice exec command stdbuf xargs")
"""Programs that only start the program that is named after them."""

SAYING: Final = words_of("echo printf date sleep cd pushd popd true set export clear pwd wc sort uniq cut tr column")
"""Programs that neither ask nor change anything outside of the output."""

KNOWN: Final = words_of(
    "git npm npx yarn pnpm node python python3 pytest make cmake docker podman kubectl helm curl wget ls find ps"
    " ss lsof sed awk go cargo rustc java mvn gradle ruby bash sh psql sqlite3 mysql systemctl journalctl ssh df"
    " du diff stat file tree jq terraform aws gcloud az ruff mypy tox uv pip"
)
"""Programs by which a command line is known as one."""

READING: Final = words_of("cat head tail less more nl bat view type tac zcat strings")
"""Programs that show a file."""

SEARCHING: Final = words_of("grep rg ag ack egrep fgrep findstr zgrep")
"""Programs that search in files."""

CHANGING: Final = words_of(
    "rm mv cp touch mkdir rmdir chmod chown ln tee patch kill pkill killall rsync scp dd truncate install unzip"
    " tar reboot shutdown mount umount useradd passwd crontab createdb dropdb black prettier gofmt"
)
"""Programs that change something."""
