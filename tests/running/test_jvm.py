"""The archive of classes that Kafka's JVMs share."""

from pathlib import Path

from tests.jvm import archive_of, missing_archive


def test_archive_is_made_once_and_again_for_other_jars(tmp_path: Path) -> None:
    libs = tmp_path / "libs"
    libs.mkdir()
    (libs / "a.jar").write_bytes(b"1")
    with missing_archive(libs) as made:
        assert made
        made.write_bytes(b"classes")
    assert archive_of(libs).read_bytes() == b"classes"
    with missing_archive(libs) as made:
        assert made is None
    (libs / "b.jar").write_bytes(b"2")
    with missing_archive(libs) as made:
        assert made
    with missing_archive(libs) as made:
        assert made, "none was made"
