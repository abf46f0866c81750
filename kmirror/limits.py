"""Every bound of the system, named, with its reason. L0: imports nothing of kmirror.

A number that limits how much, how many or how long something may be stands here and nowhere else. Values that Kafka
makes configurable are configuration (`kmirror.broker.config`), not limits.
"""

from __future__ import annotations

# --- protocol ---------------------------------------------------------------------------------------------------
MAX_VARINT_BYTES = 5
"""An unsigned varint of 32 bits never needs more; a longer one is rubbish (Kafka: ByteUtils.readUnsignedVarint)."""
MAX_VARLONG_BYTES = 10
"""The same for 64 bits."""
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
"""Cap on what one compressed batch may expand to: a 1 MB zip bomb must not take the process with it."""
MAX_CLIENT_ID_BYTES = 32_767
"""The header's client id has an int16 length."""
DECOMPRESSED_PIECE_BYTES = 1024 * 1024
"""What is expanded at a time, so that a thread that expands a large batch lets the loop run in between."""
MAX_STRING_BYTES = 32_767
"""Kafka refuses longer strings in every encoding, although a compact string could say more."""
COALESCE_BELOW_BYTES = 16 * 1024
"""Encoded pieces smaller than this are joined before they are sent: a copy costs less than another iovec entry."""

# --- source -----------------------------------------------------------------------------------------------------
MAX_READS_BEFORE_YIELD = 16
"""Successful reads in a row before a connection lets other tasks run; a fast peer must not own the loop."""
MAX_RESPONSE_FRAME_BYTES = 128 * 1024 * 1024
"""A broker accepts requests of at most 100 MiB by default (socket.request.max.bytes), so one batch, which a Fetch
returns whole, is smaller than that; a larger announced size is rubbish or an attack."""
MAX_REUSED_BUFFER_BYTES = 16 * 1024 * 1024
"""What a fetch connection keeps for its next answer; a frame with one giant batch gets a buffer of its own."""
CLIENT_READ_AHEAD_BYTES = 64 * 1024
"""Headers and small answers arrive through this buffer; larger frames are read straight into their own."""
WAKE_AFTER_BYTES = 256 * 1024
"""In the middle of a large frame the kernel wakes us only when so much (or the rest) has arrived."""
MAX_CONFIG_TOPICS_PER_REQUEST = 500
"""Topics in one DescribeConfigs: an answer of about 10 kB per topic stays a few MB."""
MAX_TICKETS_IN_FLIGHT = 64
"""Requests sent and not yet answered on one client connection; more would only queue at the broker."""

# --- server -----------------------------------------------------------------------------------------------------
RECEIVE_BUFFER_BYTES = 64 * 1024
"""Per connection, for headers and small frames. Anything larger gets a pooled buffer (hot-path measurement)."""
LARGE_FRAME_BUFFER_BYTES = 1024 * 1024 + 64 * 1024
"""First buffer of a large frame: a default producer request (1 MiB of records plus its envelope) fits without a copy.
A bigger frame doubles it as bytes arrive; the size that a frame claims is never allocated in advance."""
POOLED_BUFFERS_BYTES = 32 * 1024 * 1024
"""Idle large buffers kept for reuse; beyond it they are given back to the allocator."""
REQUEST_BUDGET_BYTES = 512 * 1024 * 1024
"""Bytes of large frames being received at once, over all connections, when queued.max.request.bytes is not set."""
READS_BEFORE_CHECKPOINT = 16
"""A peer that always has bytes ready must not keep the loop for itself: yield after so many reads in a row."""
REPLY_QUEUE_ENTRIES = 64
"""Replies of one connection that may wait for their flush before its reading stops (measured: more brings nothing)."""
LAST_REPLIES_MS = 1_000
"""How long a connection that ends over a bad request may take to send the replies to the requests before it."""
OUTBOX_BYTES = 1024 * 1024
"""Answers that may pile up while requests that came in one read are handled; then the peer has to read first. 64 KiB
of the smallest requests can ask for gigabytes."""
MAX_REQUEST_BYTES_WITHOUT_RECORDS = 16 * 1024 * 1024
"""Of any request but Produce. Nothing larger could be carried out: what it asks for is recorded in batches of at most
max.message.bytes (1 MiB unless set), and 16 MiB of lists make hundreds of MB of objects."""
MAX_REQUEST_ROWS = 100_000
"""Entries of all lists of a large request: topics, partitions, groups, members. Each costs about ten microseconds."""
MAX_ANSWER_ROWS = 1_000_000
"""The same of an answer, which repeats what the request repeats: 64 KiB could ask for the same large group so often
that its answer would be gigabytes."""
ROWS_ON_LOOP = 2_000
"""An answer with more is encoded in a thread (about a microsecond per row)."""
TURN_MS = 5
"""How long one connection may handle requests without letting the others run: a buffer full of small but costly ones
would stop everybody for seconds."""
SENDFILE_FROM_BYTES = 64 * 1024
"""Slices below it are read and joined with what surrounds them: one system call instead of two."""
SENDFILE_PIECE_BYTES = 1024 * 1024
"""A cold piece of this size blocks the loop for a few milliseconds at most, should the residency probe be wrong."""
ACCEPT_RETRY_MS = 100
"""Pause after accept failed for lack of file descriptors or memory: without it the loop would spin."""
EXPANDED_ON_LOOP_BYTES = 4 * 1024 * 1024
"""Compressed batches that expand to no more are gone through on the loop: 10 ms at worst. Others go to a thread."""
THREADS_FOR_LARGE_BATCHES = 2
"""Each may have MAX_DECOMPRESSED_BYTES in memory."""
CHORE_MS = 3
"""A slice of work that nobody waits for (a topic's directories, retention): what a request may be late by."""
TICK_MS = 1_000
"""How often periodic work looks whether something is due; none of it is needed sooner."""
IDLE_CHECK_MS = 10_000
"""How often connections are checked against connections.max.idle.ms, which is minutes."""

# --- broker -----------------------------------------------------------------------------------------------------
MAX_INLINE_FLUSH_ROUNDS = 10_000
"""A flush callback may append and so ask for another round; more rounds than this in a row is a loop, not work."""
PRODUCER_ID_BLOCK = 1000
"""Producer ids taken per durable record, as Kafka's controller hands them to its brokers."""
MAX_TOPIC_NAME_LENGTH = 249
"""A partition's directory is named after its topic; 255 is what file systems allow (Kafka: Topic.MAX_NAME_LENGTH)."""
MAX_FILE_NAME_LENGTH = 255
"""What common file systems allow (ext4, XFS, APFS)."""
MAX_PARTITIONS_PER_REQUEST = 10_000
"""Partitions that one request may create: each is a directory with files (Kafka: MAX_PARTITIONS_PER_BATCH)."""
FETCH_SESSION_EVICTION_MS = 120_000
"""A session unused for this long gives way to any newcomer (Kafka: MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""

TIMERS_PER_TURN = 1_000
"""Timers handed out before others run: a fleet of members whose sessions end at one moment must not own the loop."""

# --- storage ----------------------------------------------------------------------------------------------------
PRODUCER_BATCHES_RETAINED = 5
"""Batches per producer kept for duplicate detection: what a client may have in flight (NUM_BATCHES_TO_RETAIN)."""
RECENT_BATCHES_REMEMBERED = 4096
"""Batch positions that the active segment keeps in memory, so that readers near the end need no index and no read."""
HEADER_WINDOW_BYTES = 64 * 1024
"""Bytes read at a time when only headers are wanted: several hundred small batches, cheap to waste on a large one."""
DISK_RESERVE_BYTES = 64 * 1024 * 1024
"""Clients and mirrors are refused while less is free: metadata, mirror states and checkpoints are a few kilobytes each,
and a roll writes indexes of a few megabytes."""
DISK_RESERVE_SHARE = 16
"""One part in so many of a disk that is too small for that."""
SPACE_RETRY_MS = 200
"""Pause of the commit thread when a flush found no space for its small files; nothing else can be flushed meanwhile."""
SCAN_WINDOW_BYTES = 1024 * 1024
"""Bytes read at a time when whole batches are wanted (recovery, comparing, copying)."""
CHECK_MAX_BATCH_BYTES = 64 * 1024 * 1024
"""A check holds one batch at a time; of one that is, or says that it is, larger it takes the checksum in pieces."""
CHECK_MAX_INDEX_BYTES = 64 * 1024 * 1024
"""An index is checked as a whole: some times Kafka's default of segment.index.bytes, far more than any log needs."""
CHECK_MAX_SMALL_FILE_BYTES = 64 * 1024 * 1024
"""Checkpoints and producer snapshots: a million lines or producers; a larger file is none."""
CHECK_RESYNC_CANDIDATES = 10_000
"""Places tried behind a damaged batch for one that is sound: it only decides how bad the damage is."""
CHECK_MAX_FINDINGS_PER_FILE = 20
"""A file that is wrong throughout says so; the rest is counted."""
CHECK_ATTEMPTS = 3
"""Beside a running broker a check looks again until it finds the same twice, and not for ever."""
BATCH_AT_ONCE_BYTES = 16 * 1024 * 1024
"""Recovery reads a larger batch in pieces: the length of a torn one may be anything up to the rest of its segment."""
DESCRIPTORS_WANTED = 1 << 20
"""The soft limit of open files is raised up to this at start, where the hard one allows it (Linux's usual one)."""
OPEN_LOG_FILES_SHARE = 2
"""One in so many of the descriptors may be a log's; the rest is for connections."""
MIN_OPEN_LOG_FILES = 16
"""Under a very low limit: a request that touches several logs would open and close files all the time."""
DESCRIPTORS_KEPT_FREE = 32
"""Neither logs nor connections take these: index files, checkpoints and directories are open for a moment, and a flush
that cannot open one stops all writing. Listeners, links to sources and Python's own are among them."""
DESCRIPTORS_TRIED_TO_CLOSE = 16
"""Files with unsynced bytes that are passed over in search of one that may be closed, before the limit gives way."""
MAX_SLICES_PER_READ = 8
"""Segments that one read may span; more would be a log of tiny segments, and the reader comes back."""
RECORDS_PER_MATCH = 4096
"""Records that one regular expression may go through: it does not let go of the interpreter before its end."""
RECORD_SHAPES_REMEMBERED = 256
"""Compiled expressions for runs of equally shaped records (client append checks); a few kilobytes each."""

CLEANER_BYTES_PER_KEY = 200
"""What one key costs in the cleaner's offset map: how many fit into log.cleaner.dedupe.buffer.size."""
CLEANER_MIN_KEYS = 100_000
"""However small that buffer is: a round must get through more than one batch."""
CLEANER_NICENESS = 10
"""The cleaner's process gives way to the broker, and to everything else on the machine."""
CLEANER_WRITE_BYTES = 1024 * 1024
"""The cleaner writes runs of at least this."""

# --- mirroring --------------------------------------------------------------------------------------------------
MIRROR_MAX_PARTITION_FETCH_BYTES = 8 * 1024 * 1024
"""Fetches of a partition that is behind grow up to this: 4 to 8 MiB per answer is as fast as it gets."""
MIRROR_APPEND_RUN_BYTES = 1024 * 1024
"""Replicated batches are written in runs of at most this: a writev of 8 MiB costs a third of the rate on ext4."""
MIRROR_STOP_ANSWER_MS = 25_000
"""StopMirrorTopics answers REQUEST_TIMED_OUT after this (clients give up after 30 s); the stop itself goes on."""
MIRROR_START_ANSWER_MS = 25_000
"""The same for a start whose cut the source has to be asked about; the topic is then as it was."""
MIRROR_TAIL_BATCH_MAX_BYTES = 100 * 1024 * 1024
"""Our own last batch is fetched again and compared; a larger one is not (Kafka's socket.request.max.bytes)."""
MIRROR_GROUPS_PER_REQUEST = 100
"""Groups whose coordinators, or whose offsets, one request to the source asks for: an answer stays a few MB."""
MIRROR_GROUP_SYNC_PAUSE_MS = 1_000
"""Between two looks at the source's groups that are out of turn (a partition caught up, a group was left alone)."""

# --- offsets ----------------------------------------------------------------------------------------------------
OFFSETS_PART_BYTES = 256 * 1024
"""Batches of offsets that need not be written together (expiry, deleted topics, mirrors) are about this large: a whole
group of ten thousand partitions would pass max.message.bytes."""

# --- groups -----------------------------------------------------------------------------------------------------
GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS = 5 * 60 * 1000
"""A first JoinGroup waits no longer: its client cannot send heartbeats yet and may be gone (Kafka:
CLASSIC_GROUP_NEW_MEMBER_JOIN_TIMEOUT_MS)."""

MEMBER_PROTOCOLS_MAX = 1_000
"""Protocols (assignors) that a member may offer; clients offer up to five. Votes are counted at each rebalance."""
MEMBER_METADATA_MAX_BYTES = 4 * 1024 * 1024
"""What a member may say to all protocols together. A generation is one record of at most max.message.bytes (1 MiB)."""
GROUP_METADATA_MAX_BYTES = 64 * 1024 * 1024
"""The same of all members of a group, who wait in memory until it can, or cannot, be recorded."""
GROUP_SUBSCRIPTIONS_READ_BYTES = 1024 * 1024
"""Subscriptions of a generation that are read for their topics: larger ones do not fit a record, and take 50 ms per
MiB. A group whose subscriptions are not read counts as subscribed to everything."""
PENDING_MEMBERS_MAX = 10_000
"""Member ids of a group that were given out and have not joined: each stays for the session timeout that was asked for,
up to half an hour."""
ROWS_PER_TURN = 1_000
"""Offsets of one request that are committed or deleted, members that leave, groups that are described, before others
are served (about 10 to 20 ms)."""

# --- transactions -----------------------------------------------------------------------------------------------
TRANSACTION_MARKER_RETRY_MS = 1_000
"""Pause before a marker, or the record of a transaction's end, that a full disk refused is tried again."""
TRANSACTION_MARKERS_PER_TURN = 200
"""Markers written before others are served: a transaction may have written to ten thousand partitions, and each marker
is an append (about 50 microseconds)."""
PRODUCER_EXPIRY_CHECK_MS = 600_000
"""How often idle producers are looked for (Kafka's internal producer.id.expiration.check.interval.ms); not longer than
producer.id.expiration.ms itself."""

# --- import -----------------------------------------------------------------------------------------------------
COPY_CHUNK_BYTES = 16 * 1024 * 1024
"""Copied with one system call, after which the progress is shown; where the system cannot copy, also held in memory."""
IMPORT_CHECK_REPORT_BYTES = 4 * 1024 * 1024
"""Checked between two reports of progress: hundreds of reports a second would cost more than the checksums."""

# --- backup -----------------------------------------------------------------------------------------------------
BACKUP_WAIT_MS = 10_000
"""The longest that a question how far a backup is waits for its end."""

# --- metadata snapshots -----------------------------------------------------------------------------------------
SNAPSHOT_BATCH_BYTES = 16 * 1024
"""Records of a snapshot in one batch: it is built in one step, about two milliseconds. Kafka reads up to 8 MiB."""
SNAPSHOT_RETRY_MS = 60_000
"""Pause before a snapshot that found no space is tried again; until then the log has everything."""
SNAPSHOT_CLEANING_MS = 60_000
"""How often old snapshots and the log below them are looked at (Kafka's RaftMetadataLogCleanerManager)."""
REMOVED_TOPICS_REMEMBERED = 50_000
"""Topics whose removal is remembered, the newest. Each costs three records of a snapshot and a few hundred bytes of
memory. Only a mirror makes a topic again under an id that was removed, and its source still has it then."""
