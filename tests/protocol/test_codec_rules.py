"""The rules that generated code must obey whatever a peer sends, each by bytes written by hand, on both backends."""

from __future__ import annotations

import linecache
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from kmirror.errors import DecodeError, EncodeError
from kmirror.protocol import dissect
from kmirror.protocol.api.add_partitions_to_txn import AddPartitionsToTxnRequest
from kmirror.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse, SupportedFeatureKey
from kmirror.protocol.api.describe_topic_partitions import Cursor, DescribeTopicPartitionsResponse
from kmirror.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
    ReplicaState,
)
from kmirror.protocol.api.find_coordinator import FindCoordinatorRequest
from kmirror.protocol.api.list_config_resources import ListConfigResourcesRequest
from kmirror.protocol.api.list_groups import ListGroupsRequest
from kmirror.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from kmirror.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from kmirror.protocol.api.sasl_handshake import SaslHandshakeRequest
from kmirror.protocol.compile import decode, decoder, encode, encode_pieces, encoder
from kmirror.protocol.internal.cluster_metadata import BrokerRegistrationChangeRecord
from kmirror.slices import FileSlice

Decode = Callable[..., Any]
BOTH = pytest.mark.parametrize("read", [decode, dissect.parse], ids=["fast", "patient"])
BUILD = pytest.mark.parametrize("write", [encode, dissect.build], ids=["fast", "patient"])


@BOTH
@pytest.mark.parametrize("size", [5, 0x7FFF], ids=["one too many", "far too many"])
def test_a_length_beyond_the_frame_is_refused(read: Decode, size: int) -> None:
    with pytest.raises(DecodeError):
        read(SaslHandshakeRequest, struct.pack(">h", size) + b"plai", 1)


@BOTH
@pytest.mark.parametrize("size", [-2, -7530])
def test_a_negative_length_is_not_null(read: Decode, size: int) -> None:
    """Only -1 means null."""
    data = struct.pack(">i", size)
    with pytest.raises(DecodeError):
        read(MetadataRequest, data + b"\1", 4)


@BOTH
@pytest.mark.parametrize("count", [4, 2**31 - 1])
def test_a_count_larger_than_the_bytes_left_is_refused(read: Decode, count: int) -> None:
    with pytest.raises(DecodeError):
        read(MetadataRequest, struct.pack(">i", count) + b"\0\0\1", 4)


def test_nothing_is_allocated_from_a_claimed_count() -> None:
    claimed = b"\xff\xff\xff\xff\x0f"  # 4,294,967,294 elements
    decoder(ListGroupsRequest, 4)  # generating it does allocate
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(ListGroupsRequest, claimed + b"\1" * 10_000, 4)
        assert tracemalloc.get_traced_memory()[1] < 40_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("cls", "version", "data"),
    [
        (MetadataRequest, 4, b"\x7f\0\0\0\1"),  # strings or structs
        (ListConfigResourcesRequest, 1, b"\xff\xff\xff\x7f\1\0"),  # numbers
        (BrokerRegistrationChangeRecord, 2, bytes(12) + b"\1\2\x06\xff\xff\xff\xff\x0f\0"),  # ids, in a tag
    ],
    ids=["structs", "numbers", "ids"],
)
def test_a_count_is_checked_before_the_first_element(cls: type[Any], version: int, data: bytes) -> None:
    with pytest.raises(DecodeError, match="elements, but only"):
        decode(cls, data, version)


@BOTH
@pytest.mark.parametrize("varint", ["8080808001", "8080808080", "ffffffff1f", "ffffffffff01", "808080808000"])
def test_varints_are_capped(read: Decode, varint: str) -> None:
    """Five bytes and 32 bits; where the value would fit, it is the length that is wrong."""
    with pytest.raises(DecodeError):
        read(ApiVersionsRequest, bytes.fromhex(varint) + b"abc\1\0", 3)


@BOTH
def test_a_tag_number_has_32_bits(read: Decode) -> None:
    for number, fits in (("ffffffff0f", True), ("ffffffff1f", False), ("ffffffff8f00", False)):
        data = encode(ApiVersionsResponse(), 3)[:-1] + bytes.fromhex("01" + number + "00")
        if fits:
            assert read(ApiVersionsResponse, data, 3, exact=True) == ApiVersionsResponse()
        else:
            with pytest.raises(DecodeError):
                read(ApiVersionsResponse, data, 3)


@BOTH
def test_a_varint_may_be_longer_than_it_has_to_be(read: Decode) -> None:
    """Kafka reads it, so do we: 0x84 0x00 is four."""
    message = read(ApiVersionsRequest, bytes.fromhex("8400") + b"abc" + b"\2x\0", 3, exact=True)
    assert message == ApiVersionsRequest(client_software_name="abc", client_software_version="x")


@BOTH
def test_null_only_where_the_version_allows_it(read: Decode) -> None:
    assert read(MetadataRequest, b"\xff\xff\xff\xff", 1).topics is None
    with pytest.raises(DecodeError):
        read(MetadataRequest, b"\xff\xff\xff\xff", 0)  # null topics since v1
    with pytest.raises(DecodeError):
        read(SaslHandshakeRequest, b"\xff\xff", 1)
    with pytest.raises(DecodeError):
        read(ApiVersionsRequest, b"\0\1\0", 3)  # compact null


@BUILD
def test_null_is_refused_on_the_way_out_too(write: Callable[..., bytes]) -> None:
    assert write(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"
    with pytest.raises(EncodeError):
        write(MetadataRequest(topics=None), 0)
    with pytest.raises(EncodeError):
        write(SaslHandshakeRequest(mechanism=None), 1)  # type: ignore[arg-type]


@BOTH
def test_unknown_tags_are_skipped_by_length(read: Decode) -> None:
    unknown = bytes.fromhex("020a02aabbe80703010203")  # tags 10 and 1000
    topic = bytes(16) + b"\2t" + bytes.fromhex("010500")  # a tag in a nested struct
    data = b"\2" + topic + b"\1\1" + unknown
    message = read(MetadataRequest, data, 12, exact=True)
    assert message == MetadataRequest(
        topics=[MetadataRequestTopic(name="t")],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=True,
    )


@BOTH
def test_unknown_tags_beside_known_ones(read: Decode) -> None:
    known = encode(ApiVersionsResponse(finalized_features_epoch=7), 3)
    assert known.endswith(bytes.fromhex("0101080000000000000007"))
    data = known[:-11] + bytes.fromhex("03010800000000000000070402ffff6400")
    assert read(ApiVersionsResponse, data, 3, exact=True) == ApiVersionsResponse(finalized_features_epoch=7)


@BOTH
@pytest.mark.parametrize(
    "tags", ["01 00 7f 00", "01 00", "05", "01 01 09 0000000000000007 00", "01 01 07 00000000000007"]
)
def test_a_tag_with_a_wrong_size_is_refused(read: Decode, tags: str) -> None:
    start = encode(ApiVersionsResponse(), 3)[:-1]
    with pytest.raises(DecodeError):
        read(ApiVersionsResponse, start + bytes.fromhex(tags), 3, exact=True)


@BOTH
def test_a_tag_that_ends_beyond_the_frame_is_refused(read: Decode) -> None:
    for cls, version in ((ApiVersionsResponse, 3), (ApiVersionsRequest, 3)):  # with known tags, and without
        data = encode(cls(), version)[:-1] + bytes.fromhex("01 0a 05 aabb")
        with pytest.raises(DecodeError):
            read(cls, data, version)


@BOTH
def test_bytes_after_the_message(read: Decode) -> None:
    """Kafka ignores them in a request; tests do not."""
    data = encode(SaslHandshakeRequest(mechanism="PLAIN"), 1) + b"rest"
    assert read(SaslHandshakeRequest, data, 1).mechanism == "PLAIN"
    with pytest.raises(DecodeError, match="after"):
        decode(SaslHandshakeRequest, data, 1, exact=True)


@BUILD
def test_a_field_that_the_version_lacks(write: Callable[..., bytes]) -> None:
    """Its default is left out; another value is an error, unless the field may be ignored."""
    request = FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=0)])])
    assert write(request, 4) == write(request, 5)[:-12] + write(request, 5)[-4:]
    request.rack_id = "r1"  # ignorable
    assert write(request, 10)
    request.topics[0].partitions[0].last_fetched_epoch = 3  # not ignorable, in a nested struct
    with pytest.raises(EncodeError, match="last_fetched_epoch"):
        write(request, 11)
    assert write(request, 12)
    request = FetchRequest(replica_id=5)
    assert write(request, 14)
    with pytest.raises(EncodeError, match="replica_id"):
        write(request, 15)
    with pytest.raises(EncodeError, match="replica_state"):
        write(FetchRequest(replica_state=ReplicaState(replica_id=5)), 14)


def test_absent_fields_decode_to_their_defaults() -> None:
    request = decode(FetchRequest, encode(FetchRequest(max_wait_ms=1), 4), 4)
    assert (request.session_epoch, request.rack_id, request.cluster_id) == (-1, "", None)
    assert request.replica_state == ReplicaState()


@BUILD
def test_values_that_do_not_fit(write: Callable[..., bytes]) -> None:
    for bad in (FetchRequest(max_wait_ms=2**31), FetchRequest(isolation_level=-129)):
        with pytest.raises(EncodeError):
            write(bad, 12)
    with pytest.raises(EncodeError):
        write(SaslHandshakeRequest(mechanism="x" * 40_000), 1)
    with pytest.raises(EncodeError):
        write(ApiVersionsRequest(client_software_name="x" * 32_768), 3)
    assert write(ApiVersionsRequest(client_software_name="x" * 32_767), 3)
    with pytest.raises(EncodeError):
        write(FetchRequest(topics=[FetchTopic(topic_id=b"short")]), 13)
    with pytest.raises(EncodeError):
        write(SaslHandshakeRequest(mechanism="\ud800"), 1)


@BOTH
def test_strings_longer_than_kafka_allows(read: Decode) -> None:
    size = bytes.fromhex("818002")  # 32,768 + 1
    with pytest.raises(DecodeError):
        read(ApiVersionsRequest, size + b"x" * 32_768 + b"\1\0", 3)


@BOTH
def test_text_that_is_not_utf_8_becomes_replacement_characters(read: Decode) -> None:
    """As in Kafka: a bad topic name is answered, it does not cost the connection."""
    assert read(SaslHandshakeRequest, b"\0\2\xff\xfe", 1).mechanism == "\ufffd\ufffd"


@BOTH
def test_nullable_structs(read: Decode) -> None:
    for cursor in (None, Cursor(topic_name="t", partition_index=3)):
        response = DescribeTopicPartitionsResponse(next_cursor=cursor)
        assert read(DescribeTopicPartitionsResponse, encode(response, 0), 0, exact=True) == response


def test_an_unsupported_version_is_an_error() -> None:
    with pytest.raises(DecodeError, match="4-18"):
        decoder(FetchRequest, 19)
    with pytest.raises(EncodeError, match="4-18"):
        encoder(FetchRequest, 3)
    with pytest.raises(DecodeError):
        decoder(FetchTopic, 12)  # a struct is no message


def test_errors_name_the_field() -> None:
    request = FetchRequest(
        topics=[
            FetchTopic(topic="a", partitions=[FetchPartition(partition=index) for index in range(3)]),
            FetchTopic(topic="b", partitions=[FetchPartition(partition=0)]),
        ]
    )
    data = encode(request, 11)
    with pytest.raises(DecodeError) as caught:
        decode(FetchRequest, data[:-12], 11)
    assert (caught.value.path, caught.value.offset) == ("topics[1].partitions[0].log_start_offset", len(data) - 18)
    request.topics[1].topic = None  # type: ignore[assignment]
    with pytest.raises(EncodeError, match=r"FetchRequest v11 at topics\[\].topic"):
        encode(request, 11)


def test_records_are_views_of_the_frame() -> None:
    records = bytes(1_000_000)
    partitions = [PartitionProduceData(index=0, records=records), PartitionProduceData(index=1, records=None)]
    frame = encode(ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=partitions)]), 9)
    found = decode(ProduceRequest, frame, 9).topic_data[0].partition_data
    assert isinstance(found[0].records, memoryview)
    assert found[0].records.obj is frame
    assert found[1].records is None


class _MemoryFile:
    def pread(self, size_bytes: int, position: int) -> bytes:
        return b"0123456789"[position : position + size_bytes]

    def fileno(self) -> None:
        return None


class _Owner:
    generation = 0


@pytest.mark.parametrize("version", [11, 12])
def test_records_of_an_answer_stay_pieces(version: int) -> None:
    piece = FileSlice(_MemoryFile(), 2, 5, _Owner(), 0)
    view = memoryview(b"abc")
    answer = FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic="t", partitions=[PartitionData(records=[view, piece], aborted_transactions=None)]
            )
        ]
    )
    pieces: list[Any] = []
    size_bytes = encode_pieces(answer, version, pieces)
    assert piece in pieces and view in pieces
    assert size_bytes == sum(map(len, pieces)) == len(encode(answer, version))
    decoded = decode(FetchResponse, encode(answer, version), version).responses[0].partitions[0]
    assert bytes(decoded.records) == b"abc23456"  # type: ignore[arg-type]


def test_a_failed_encode_leaves_the_pieces_alone() -> None:
    pieces: list[Any] = [b"before"]
    with pytest.raises(EncodeError):
        encode_pieces(FetchRequest(rack_id=None), 12, pieces)  # type: ignore[arg-type]
    assert pieces == [b"before"]


def test_generated_source_is_in_tracebacks() -> None:
    encoder(FindCoordinatorRequest, 3)
    text = "".join(linecache.getlines("<kmirror encode FindCoordinatorRequest v3>"))
    assert text.startswith("def encode(") and "m0.key_type" in text


def test_tagged_arrays_and_both_shapes_of_one_api() -> None:
    features = [SupportedFeatureKey(name="mirror.version", min_version=0, max_version=1)]
    response = ApiVersionsResponse(supported_features=features, zk_migration_ready=True)
    assert decode(ApiVersionsResponse, encode(response, 4), 4, exact=True) == response
    with pytest.raises(EncodeError):
        encode(AddPartitionsToTxnRequest(v3_and_below_producer_id=4), 4)
    assert encode(AddPartitionsToTxnRequest(v3_and_below_producer_id=4), 3)


def test_an_end_beyond_the_buffer_does_not_help() -> None:
    """Slices would silently be shorter than their length says."""
    with pytest.raises(DecodeError):
        decoder(SaslHandshakeRequest, 1)(b"\0\5PLAI", 0, 100)
