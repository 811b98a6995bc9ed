"""`ordered-pubsub config check` and `config token`."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from ordered_pubsub.cli import main
from ordered_pubsub.config.files import hash_token, read_token
from ordered_pubsub.config.reading import load, read_text

HASH = "ab" * 32
FILE = f"""\
[client]
ens = "mqtt://user:hush-hush@h"
sequencer = "ops://a"
[[stage]]
name = "eu"
topics = ["eu/**"]
http = ":7413"
[[stage]]
name = "us"
listen = "127.0.0.1:7412"
topics = ["eu/old"]
[[topic]]
pattern = "eu/**"
[[identity]]
name = "desk-1"
token_sha256 = "{HASH}"
certificate = "desk-1.example"
allow = {{ publish = ["eu/**"], subscribe = ["**"], transact = true, stage = true }}
deny = {{ subscribe = ["eu/private"], transact = true }}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A current folder in which nothing is found by chance."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file() -> Path:
    path = Path("ordered_pubsub.toml")
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What a command prints; to the standard error, if it is to fail."""
    assert main(["config", *arguments]) == code
    captured = capsys.readouterr()
    assert code == 0 or captured.out == ""
    return captured.err if code else captured.out


# -- check ------------------------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "check")

    assert "file: none, so the defaults\n" in shown
    assert "client: ens none, so memory://; stages none\n" in shown
    assert "stage main: rank 0; listens at 127.0.0.1:7411, reached at ops://127.0.0.1:7411\n" in shown
    assert "identities: none, so everybody who reaches a stage may do everything\n" in shown


def test_the_file_that_was_read_is_named(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert run(capsys, "check").startswith("file: ordered_pubsub.toml\n")
    file.rename("x.toml")
    assert run(capsys, "check", "x.toml").startswith("file: x.toml\n")


def test_what_the_environment_changed_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_TIMEOUT_S", "3")

    assert "environment: ORDERED_PUBSUB_TIMEOUT_S sets client.timeout_s\n" in run(capsys, "check")


def test_stages_are_shown_by_rank(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = run(capsys, "check")

    assert shown.index("stage eu: rank 0; listens at 127.0.0.1:7411") < shown.index("stage us: rank 1; listens at")
    assert "topics eu/**; store sqlite:///" in shown
    assert "durability fsync\n  health and metrics at http://127.0.0.1:7413\n" in shown


def test_identities_are_shown_with_their_rights(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = run(capsys, "check")

    assert "desk-1: known by a token or the certificate 'desk-1.example'\n" in shown
    assert "may publish: eu/**\n" in shown
    assert "may subscribe: **, but not eu/private\n" in shown
    assert "may transact, but it is denied\n" in shown
    assert "may link as a stage\n" in shown


def test_nothing_secret_is_shown(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    for arguments in (["check"], ["check", "--json"]):
        shown = run(capsys, *arguments)
        assert "hush-hush" not in shown
        assert HASH not in shown


def test_where_a_topic_belongs_is_shown(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = run(capsys, "check", "--topic", "eu/a", "--topic", "eu/private", "--topic", "news")

    assert (
        "topic eu/a: belongs to stage eu, by its pattern eu/**\n  may publish: desk-1\n  may subscribe: desk-1\n"
        in shown
    )
    assert (
        "topic eu/private: belongs to stage eu, by its pattern eu/**\n  may publish: desk-1\n  may subscribe: none\n"
        in shown
    )
    assert "by its hash, since no pattern matches" in shown


def test_an_unlisted_topic_is_shown_as_refused(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text('topics = "listed"\n' + FILE)

    assert "topic news: refused, since no [[topic]] lists it\n" in run(capsys, "check", "--topic", "news")


def test_a_pattern_is_no_topic(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "patterns are not accepted here" in run(capsys, "check", "--topic", "eu/**", code=2)


def test_a_pattern_that_never_matches_is_warned_of(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "warning: stage[1].topics[0] = 'eu/old' owns nothing more: stage[0].topics[0] = 'eu/**'" in run(
        capsys, "check"
    )


def test_a_configuration_that_does_not_fit_ends_with_2(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(FILE + "[limit]\n")
    line = FILE.count("\n") + 1

    assert run(capsys, "check", code=2).startswith(
        f"ordered-pubsub config: ordered_pubsub.toml, line {line}: limit is unknown; did you mean 'limits'; known here: client, "
    )


def test_what_is_not_offered_ends_with_2(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(FILE + '[[group]]\ntopics = ["a", "b"]\n')

    assert "group[0] is not available yet" in run(capsys, "check", code=2)


def test_a_token_that_others_may_read_ends_with_2(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(FILE.replace("[client]", '[client]\ntoken_file = "t"'))
    Path("t").write_text("x" * 40)
    Path("t").chmod(0o644)

    assert "has mode 0644" in run(capsys, "check", code=2)


def test_files_of_other_machines_are_not_missed(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(FILE.replace('name = "us"', 'name = "us"\ntoken_file = "us.token"'))

    assert "warning: not on this machine, so not checked: " in run(capsys, "check")
    assert "us.token of the stage 'us'\n" in run(capsys, "check", "--stage", "eu")


def test_files_of_the_stage_that_is_to_be_served_here_are_missed(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.write_text(FILE.replace('name = "us"', 'name = "us"\ntoken_file = "us.token"'))

    assert "us.token' cannot be used: No such file or directory" in run(capsys, "check", "--stage", "us", code=2)


def test_a_stage_that_is_not_there_ends_with_2(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "there is no stage 'x' in the configuration; there are eu, us" in run(
        capsys, "check", "--stage", "x", code=2
    )


def test_for_machines_it_is_one_json_object(
    capsys: pytest.CaptureFixture[str], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORDERED_PUBSUB_NAME", "n")
    found = json.loads(run(capsys, "check", "--json", "--topic", "eu/a"))

    assert found["file"] == "ordered_pubsub.toml"
    assert found["environment"] == {"ORDERED_PUBSUB_NAME": "client.name"}
    assert found["configuration"]["stage"][1]["name"] == "us"
    assert found["topics"]["eu/a"] == {
        "stage": "eu",
        "pattern": "eu/**",
        "is_listed": True,
        "delivery": "exactly-once",
        "publish": ["desk-1"],
        "subscribe": ["desk-1"],
    }
    assert any("owns nothing more" in warning for warning in found["warnings"])


# -- token ------------------------------------------------------------------------------------------------------------


def test_a_token_is_made_and_fits_the_lines_that_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(capsys, "token", "desk-1", "--publish", "orders/**", "--subscribe", "**", "--stage")
    (identity,) = read_text(printed).identity or ()

    assert identity.token_sha256 == (hash_token(read_token("desk-1.token")),)
    assert identity.name == "desk-1"
    assert identity.may("publish", "orders/1")
    assert not identity.may("publish", "news")
    assert identity.may("subscribe", "news")
    assert identity.may("stage")


def test_only_the_owner_may_read_the_token_and_it_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "token", "desk-1"]) == 0
    captured = capsys.readouterr()

    assert stat.S_IMODE(Path("desk-1.token").stat().st_mode) == 0o600
    assert read_token("desk-1.token") not in captured.out + captured.err
    assert "the token is in desk-1.token" in captured.err


def test_the_lines_can_be_put_at_the_end_of_a_file(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    file.write_text(FILE.rstrip("\n") + run(capsys, "token", "desk-2"))

    assert [each.name for each in load(environ={}).configuration.identity or ()] == ["desk-1", "desk-2"]


def test_without_patterns_nothing_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    (identity,) = read_text(run(capsys, "token", "desk-1")).identity or ()

    assert not identity.may("publish", "x")
    assert not identity.may("stage")


def test_a_token_is_not_written_over_another(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "token", "desk-1")

    assert "'desk-1.token' is there already" in run(capsys, "token", "desk-1", code=2)


@pytest.mark.parametrize("name", ["../x", "a/b", "Ännie 1", ".x"])
def test_a_name_that_is_no_name_for_a_file_needs_one(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert "say by --output FILE where the token goes" in run(capsys, "token", name, code=2)
    (identity,) = read_text(run(capsys, "token", name, "--output", "t")).identity or ()
    assert identity.name == name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["x\ny"], "NAME='x\\ny' does not fit"), (["x", "--publish", "a*"], "mixes '*' with other characters")],
)
def test_what_does_not_fit_leaves_no_token(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in run(capsys, "token", *arguments, code=2)
    assert list(Path().iterdir()) == []


def test_an_action_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the following arguments are required: ACTION" in run(capsys, code=2)


@pytest.mark.parametrize("arguments", [[], ["check"], ["token"]])
def test_help_has_an_example(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    assert "ordered-pubsub config check /etc" in run(capsys, *arguments, "--help")
