"""The messages of Kafka 4.4 that kio lacks, as Kafka defines them, for as long as it lacks them."""

import io
import json
import re
import zipfile
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema

from kproxy.protocol.codec import decode_response, encode
from kproxy.protocol.newer import REQUESTS, RESPONSES
from tests.harness import CLIENT_JARS, need

_BEFORE_ALL = datetime.fromtimestamp(0, UTC) - timedelta(milliseconds=1)
NEWER = [(REQUESTS, key) for key in REQUESTS] + [(RESPONSES, key) for key in RESPONSES]


@pytest.mark.parametrize(("key", "version"), RESPONSES)
def test_kio_does_not_have_it_yet(key: int, version: int) -> None:
    """Remove the entry in `newer` of a version that fails here."""
    for load in (load_request_schema, load_response_schema):
        with pytest.raises(Exception, match=r"map"):
            load(key, version)


def test_an_answer_is_read_as_it_was_written() -> None:
    results = [{"group_id": "g", "error_code": 0, "error_message": None},
               {"group_id": "h", "error_code": 68, "error_message": "has members"}]  # fmt: skip
    _, answer = decode_response(42, 3, encode(42, 3, 7, {"results": results})[4:])
    assert [one.error_message for one in answer.results] == [None, "has members"]


def test_an_id_without_a_transaction_has_no_start() -> None:
    """FAULT: kio refuses to read a time of -1, so whoever asked had no answer at all."""
    state = {
        "error_code": 0, "transactional_id": "t", "transaction_state": "Empty",
        "transaction_timeout": 1000, "producer_id": 1, "producer_epoch": 0, "topics": (),
    }  # fmt: skip
    begun = datetime.fromtimestamp(5, UTC)
    states = [state | {"transaction_start_time": at} for at in (_BEFORE_ALL, begun)]
    _, answer = decode_response(65, 0, encode(65, 0, 7, {"transaction_states": states})[4:])
    assert [one.transaction_start_time for one in answer.transaction_states] == [None, begun]


def test_fields_are_those_of_kafkas_definitions() -> None:
    jar = CLIENT_JARS / "kafka-clients-4.4.0.jar"
    need(jar.exists(), "Kafka's definitions: make old-clients")
    with zipfile.ZipFile(io.BytesIO(jar.read_bytes())) as packed:
        for schemas, (key, version) in NEWER:
            schema = schemas[key, version]()
            text = packed.read(f"common/message/{schema.__name__}.json").decode()
            defined = json.loads(re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
            assert (defined["apiKey"], schema.__version__) == (key, version)
            structs = {one["name"]: one["fields"] for one in defined.get("commonStructs", ())}
            assert shape(schema) == list(told(defined["fields"], structs, version)), schema


def shape(schema: Any) -> list[Any]:
    """Return the names of fields, in order, with those of structures in them."""
    found: list[Any] = []
    for field in fields(schema):
        found.append(plain(field.name))
        nested = next((one for one in parts(field.type) if hasattr(one, "__flexible__")), None)
        if nested is not None:
            found.append(shape(nested))
    return found


def parts(kind: Any) -> list[Any]:
    return [kind, *(part for one in getattr(kind, "__args__", ()) for part in parts(one))]


def told(defined: Any, structs: dict[str, Any], version: int) -> Any:
    for field in defined:
        if not has(field["versions"], version):
            continue
        yield plain(field["name"])
        inner = field.get("fields") or structs.get(field["type"].removeprefix("[]"))
        if inner is not None:
            yield list(told(inner, structs, version))


def has(versions: str, version: int) -> bool:
    low, dash, high = versions.rstrip("+").partition("-")
    if versions.endswith("+"):
        return version >= int(low)
    return int(low) <= version <= int(high if dash else low)


def plain(name: str) -> str:
    """Return a field's name without what kio leaves out, and as all versions of kio have it."""
    name = name.replace("_", "").lower()
    name = {"generationidormemberepoch": "generationid"}.get(name, name)
    return name.removesuffix("ms")
