"""The conditions that the generator of each simulation is there to reach.

A condition is what became of a kind of command in the log ("APPEND: NONE"), or an event of its own.
Two hundred seeds reach each of them; `make soak` fails where they do not.
"""

_REACHED = {
    "crashes": """
        APPEND: NONE; APPEND: UNKNOWN_TOPIC_ID; COMMIT: NONE; CREATE: NONE; DELETE: NONE;
        DELETE: UNKNOWN_TOPIC_ID; TRIM: NONE; TRIM: UNKNOWN_TOPIC_ID; a commit cut off;
        forgotten; no room for a flush; room for a flush; segments freed; sent again
    """,
    "shared-log": """
        APPEND: NONE; APPEND: OUT_OF_ORDER_SEQUENCE_NUMBER; APPEND: UNKNOWN_TOPIC_ID;
        COMMIT: NONE; CREATE: NONE; CREATE: TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE:
        UNKNOWN_TOPIC_ID; TRIM: NONE; TRIM: OFFSET_OUT_OF_RANGE; TRIM: UNKNOWN_TOPIC_ID;
        answered; died; died amid appends; given up; landed twice; lost; not reported
    """,
    "rebuild": """
        APPEND: NONE; APPEND: OUT_OF_ORDER_SEQUENCE_NUMBER; APPEND: UNKNOWN_TOPIC_ID;
        ASSIGN_PARTITIONS: NONE; CLAIM: NONE; COMMIT: NONE; COMMIT: UNKNOWN_MEMBER_ID;
        COMPACT: NONE; COMPACT: UNKNOWN_TOPIC_ID; COPY: NONE; CREATE: NONE; CREATE:
        TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE: UNKNOWN_TOPIC_ID; DELETE_GROUP:
        GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE; DELETE_GROUP: NON_EMPTY_GROUP;
        DELETE_OFFSETS: NONE; EXPIRE: NONE; EXPIRE: NOT_COORDINATOR; FOREIGN:
        INVALID_RECORD; FORGET_PRODUCERS: NONE; GROUP: NONE; GROUP: NOT_COORDINATOR;
        QUEUE_READY: NONE; REPLACE: NONE; REPLACE: UNKNOWN_TOPIC_ID; TRIM: NONE; TRIM:
        OFFSET_OUT_OF_RANGE; TRIM: UNKNOWN_TOPIC_ID; compacted; copied; forgotten;
        rebuilt; trimmed
    """,
    "rebuild-shares": """
        AIM_FORWARD: NONE; APPEND: NONE; APPEND: OUT_OF_ORDER_SEQUENCE_NUMBER; APPEND:
        UNKNOWN_TOPIC_ID; ASSIGN_PARTITIONS: NONE; CLAIM: NONE; COMMIT: NONE; COMMIT:
        UNKNOWN_MEMBER_ID; COMPACT: NONE; CONFIGURE_GROUP: NONE; COPY: NONE; CREATE: NONE;
        CREATE: TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE: UNKNOWN_TOPIC_ID;
        DELETE_GROUP: GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE; DELETE_GROUP:
        NON_EMPTY_GROUP; DELETE_OFFSETS: NONE; EXPIRE: NONE; EXPIRE: NOT_COORDINATOR;
        FOREIGN: INVALID_RECORD; FORGET_PRODUCERS: NONE; FORWARD: NONE; FORWARD:
        UNKNOWN_TOPIC_ID; GROUP: NONE; GROUP: NOT_COORDINATOR; GROUP_CONFIG; QUEUE_READY:
        NONE; REPLACE: NONE; REPLACE: UNKNOWN_TOPIC_ID; SETTLE_FORWARD: NONE; SHARE: NONE;
        SHARE: NOT_LEADER_OR_FOLLOWER; SHARE_QUEUE; SHARE_QUEUES: NONE; SHARE_QUEUES:
        NOT_COORDINATOR; SHARE_SET: NONE; TRIM: NONE; TRIM: OFFSET_OUT_OF_RANGE; TRIM:
        UNKNOWN_TOPIC_ID; compacted; copied; forgotten; owed; rebuilt; taken; trimmed;
        void
    """,
    "rebuild-transactions": """
        APPEND: NONE; APPEND: OUT_OF_ORDER_SEQUENCE_NUMBER; APPEND: UNKNOWN_TOPIC_ID;
        ASSIGN_PARTITIONS: NONE; BEGIN: NONE; CLAIM: NONE; COMMIT: NONE; COMMIT:
        UNKNOWN_MEMBER_ID; COMPACT: NONE; COMPACT: UNKNOWN_TOPIC_ID; COMPLETE: NONE; COPY:
        NONE; CREATE: NONE; CREATE: TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE:
        UNKNOWN_TOPIC_ID; DELETE_GROUP: GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE;
        DELETE_GROUP: NON_EMPTY_GROUP; DELETE_OFFSETS: NONE; END: NONE; END:
        NOT_COORDINATOR; ENLIST: NONE; ENLIST: NOT_COORDINATOR; EXPIRE: NONE; EXPIRE:
        NOT_COORDINATOR; EXPIRE_TRANSACTION: INVALID_TXN_STATE; EXPIRE_TRANSACTION: NONE;
        FOREIGN: INVALID_RECORD; GROUP: NONE; GROUP: NOT_COORDINATOR; INIT_PRODUCER:
        CONCURRENT_TRANSACTIONS; INIT_PRODUCER: NONE; INIT_PRODUCER: NOT_COORDINATOR;
        MARKER: NONE; QUEUE_READY: NONE; REPLACE: NONE; REPLACE: UNKNOWN_TOPIC_ID;
        TRANSACTION_COMMIT: INVALID_TXN_STATE; TRANSACTION_COMMIT: NONE; TRIM: NONE; TRIM:
        OFFSET_OUT_OF_RANGE; TRIM: UNKNOWN_TOPIC_ID; aborted; anchor; compacted; copied;
        empty; pending; rebuilt; trimmed; void
    """,
    "rebuild-delays": """
        APPEND: NONE; APPEND: OUT_OF_ORDER_SEQUENCE_NUMBER; APPEND: UNKNOWN_TOPIC_ID;
        ASSIGN_PARTITIONS: NONE; CLAIM: NONE; COMMIT: NONE; COMMIT: UNKNOWN_MEMBER_ID;
        COMPACT: NONE; COPY: NONE; CREATE: NONE; CREATE: TOPIC_ALREADY_EXISTS; DELETE:
        NONE; DELETE: UNKNOWN_TOPIC_ID; DELETE_GROUP: GROUP_ID_NOT_FOUND; DELETE_GROUP:
        NONE; DELETE_OFFSETS: NONE; DUE: NONE; DUE: NOT_LEADER_OR_FOLLOWER; DUE:
        UNKNOWN_TOPIC_ID; EXPIRE: NONE; EXPIRE: NOT_COORDINATOR; FOREIGN: INVALID_RECORD;
        FORGET_PRODUCERS: NONE; GROUP: NONE; GROUP: NOT_COORDINATOR; LATER: NONE; LATER:
        OUT_OF_ORDER_SEQUENCE_NUMBER; LATER: UNKNOWN_TOPIC_ID; QUEUE_READY: NONE; REPLACE:
        NONE; TRIM: NONE; TRIM: OFFSET_OUT_OF_RANGE; TRIM: UNKNOWN_TOPIC_ID; compacted;
        copied; due; duplicate; forgotten; mixed; numbered; rebuilt; trimmed; void; waited
    """,
    "shares": """
        APPEND: NONE; BEGIN: NONE; CLAIM: NONE; COMPACT: NONE; CREATE: NONE; DELETE: NONE;
        MARKER: NONE; SHARE: NONE; SHARE: NOT_LEADER_OR_FOLLOWER; SHARE_SET: NONE; TRIM:
        NONE; accepted; acknowledged: INVALID_RECORD_STATE; acknowledged: INVALID_REQUEST;
        acknowledged: NONE; acknowledged: NOT_LEADER_OR_FOLLOWER; acknowledged:
        REQUEST_TIMED_OUT; acknowledged: UNKNOWN_TOPIC_ID; acknowledged:
        UNKNOWN_TOPIC_OR_PARTITION; an append lost; an append sent again; crashed; crashed
        amid appends; gaps; given; given again; given up; its answer lost; other stalled;
        owed; owner stalled; rejected; starts; taken over; taken over amid appends; void
        by epoch; void by term
    """,
    "routes": """
        APPEND: NONE; BEGIN: NONE; CLAIM: NONE; CONFIGURE: NONE; CREATE: NONE; CUT: NONE;
        CUT: NOT_LEADER_OR_FOLLOWER; CUT: UNKNOWN_TOPIC_ID; DELETE: NONE; MARKER: NONE;
        ROUTE: NONE; SHIP: NONE; TRIM: NONE; TRIM: UNKNOWN_TOPIC_ID; aborted; an append
        lost; an append sent again; committed; crashed; crashed amid appends; cut; forward
        late; forward lost; forward not answered; forward sent again; its answer lost;
        other stalled; owner stalled; passed on; taken; taken over; taken over amid
        appends; target deleted; void; void cut
    """,
    "dead-letters": """
        AIM_FORWARD: NONE; AIM_FORWARD: NOT_LEADER_OR_FOLLOWER; APPEND: NONE;
        ASSIGN_PARTITIONS: NONE; CLAIM: NONE; FORWARD: NONE; SETTLE_FORWARD: NONE; SHARE:
        NONE; SHARE: NOT_LEADER_OR_FOLLOWER; SHARE_SET: NONE; TRIM: NONE; an append lost;
        an append sent again; crashed; crashed amid appends; forward late; forward lost;
        forward not answered; forward sent again; its answer lost; nowhere to send to;
        other stalled; owed; owner stalled; queue grown; taken over; taken over amid
        appends
    """,
    "transactions": """
        APPEND: INVALID_PRODUCER_EPOCH; APPEND: INVALID_TXN_STATE; APPEND: NONE; APPEND:
        UNKNOWN_TOPIC_ID; BEGIN: INVALID_TXN_STATE; BEGIN: NONE; COMMIT: NONE; COMPLETE:
        INVALID_TXN_STATE; COMPLETE: NONE; CREATE: NONE; DELETE: NONE; DELETE_GROUP:
        GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE; DELETE_OFFSETS: NONE; END:
        CONCURRENT_TRANSACTIONS; END: INVALID_PRODUCER_ID_MAPPING; END: INVALID_TXN_STATE;
        END: NONE; END: PRODUCER_FENCED; ENLIST: CONCURRENT_TRANSACTIONS; ENLIST:
        INVALID_PRODUCER_ID_MAPPING; ENLIST: NONE; ENLIST: PRODUCER_FENCED;
        EXPIRE_TRANSACTION: NONE; INIT_PRODUCER: CONCURRENT_TRANSACTIONS; INIT_PRODUCER:
        NONE; MARKER: NONE; TRANSACTION_COMMIT: INVALID_TXN_STATE; TRANSACTION_COMMIT:
        NONE; TRIM: NONE; answer lost; append lost; append sent again; committed; not
        committed; offsets; restarted; seen though not answered
    """,
    "delays": """
        APPEND: NONE; CLAIM: NONE; CREATE: NONE; DELETE: NONE; DELETE: UNKNOWN_TOPIC_ID;
        DUE: NONE; DUE: NOT_LEADER_OR_FOLLOWER; DUE: UNKNOWN_TOPIC_ID; LATER: NONE; LATER:
        OUT_OF_ORDER_SEQUENCE_NUMBER; LATER: UNKNOWN_TOPIC_ID; jumps; retried; split;
        takeovers
    """,
    "workers": """
        APPEND: NONE; APPEND: UNKNOWN_TOPIC_ID; ASSIGN_PARTITIONS: NONE; CLAIM: NONE;
        COMMIT: NONE; COMMIT: UNKNOWN_MEMBER_ID; CONFIGURE: NONE; CONFIGURE:
        UNKNOWN_TOPIC_ID; COPY: NONE; COPY: UNKNOWN_TOPIC_ID; CREATE: NONE; CREATE:
        TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE: UNKNOWN_TOPIC_ID; DELETE_GROUP:
        GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE; DELETE_GROUP: NON_EMPTY_GROUP;
        DELETE_OFFSETS: NONE; FOREIGN: INVALID_RECORD; GROUP: NONE; GROUP:
        NOT_COORDINATOR; GROW: INVALID_PARTITIONS; GROW: NONE; GROW: UNKNOWN_TOPIC_ID;
        PRODUCER_ID: NONE; QUEUE_READY: NONE; TRIM: NONE; TRIM: UNKNOWN_TOPIC_ID; a copy
        wiped; a record lost by a power cut; appended; changed; committed; crashed while
        catching_up; crashed while claiming; crashed while opening; crashed while
        rebuilding; crashed while served; created; deleted; foreign_records_skipped;
        grouped; identified; kept its disk; local_copy_damaged; local_copy_discarded; log
        trimmed; lost its disk; moved while catching_up; moved while claiming; moved while
        opening; moved while rebuilding; moved while served; moved while waiting; power
        failed; produced; shard_left; shard_not_served; shard_served; trimmed; trimmed
        past a reader
    """,
    "workers-transactions": """
        APPEND: INVALID_PRODUCER_EPOCH; APPEND: INVALID_TXN_STATE; APPEND: NONE; APPEND:
        UNKNOWN_TOPIC_ID; ASSIGN_PARTITIONS: NONE; BEGIN: INVALID_TXN_STATE; BEGIN: NONE;
        CLAIM: NONE; COMMIT: NONE; COMMIT: UNKNOWN_MEMBER_ID; COMPLETE: INVALID_TXN_STATE;
        COMPLETE: NONE; CONFIGURE: NONE; COPY: NONE; COPY: UNKNOWN_TOPIC_ID; CREATE: NONE;
        CREATE: TOPIC_ALREADY_EXISTS; DELETE: NONE; DELETE: UNKNOWN_TOPIC_ID;
        DELETE_GROUP: GROUP_ID_NOT_FOUND; DELETE_GROUP: NONE; DELETE_GROUP:
        NON_EMPTY_GROUP; DELETE_OFFSETS: NONE; END: CONCURRENT_TRANSACTIONS; END:
        INVALID_PRODUCER_ID_MAPPING; END: INVALID_TXN_STATE; END: NONE; END:
        NOT_COORDINATOR; END: PRODUCER_FENCED; ENLIST: CONCURRENT_TRANSACTIONS; ENLIST:
        INVALID_PRODUCER_ID_MAPPING; ENLIST: NONE; ENLIST: NOT_COORDINATOR; ENLIST:
        PRODUCER_FENCED; GROUP: NONE; GROUP: NOT_COORDINATOR; GROW: NONE; INIT_PRODUCER:
        CONCURRENT_TRANSACTIONS; INIT_PRODUCER: NONE; INIT_PRODUCER: NOT_COORDINATOR;
        INIT_PRODUCER: PRODUCER_FENCED; MARKER: NONE; PRODUCER_ID: NONE; QUEUE_READY:
        NONE; TRANSACTION_COMMIT: INVALID_TXN_STATE; TRANSACTION_COMMIT: NONE; TRIM: NONE;
        a copy wiped; appended; changed; committed; crashed while served; created;
        deleted; grouped; identified; in a transaction; kept its disk; local_copy_damaged;
        local_copy_discarded; log trimmed; lost its disk; moved while catching_up; moved
        while claiming; moved while opening; moved while rebuilding; moved while served;
        produced; shard_left; shard_not_served; shard_served; trimmed; trimmed past a
        reader
    """,
    "groups": """
        CLAIM: NONE; COMMIT: NONE; COMMIT: STALE_MEMBER_EPOCH; GROUP: NONE; GROUP:
        NOT_COORDINATOR; GROW: NONE; SHARE_QUEUES: NONE; SHARE_SET: NONE; an append lost;
        an append sent again; answer to a member lost; beat: NONE; beat:
        REBALANCE_IN_PROGRESS; beat: UNKNOWN_MEMBER_ID; classic becomes consumer; commit:
        STALE_MEMBER_EPOCH; committed; consumer becomes classic; consumer gave up;
        consumer: COORDINATOR_NOT_AVAILABLE; consumer: FENCED_MEMBER_EPOCH; consumer:
        GROUP_ID_NOT_FOUND; consumer: NONE; consumer: NOT_COORDINATOR; consumer:
        UNKNOWN_MEMBER_ID; consumer: UNRELEASED_INSTANCE_ID; crashed; crashed amid
        appends; has to give up; its answer lost; join: COORDINATOR_NOT_AVAILABLE; join:
        MEMBER_ID_REQUIRED; join: NONE; join: NOT_COORDINATOR; join: UNKNOWN_MEMBER_ID;
        member died; member gone; member left; member lost patience; member stalled; other
        stalled; owner stalled; queue grown; request of a member lost; share: NONE; share:
        NOT_COORDINATOR; share: UNKNOWN_MEMBER_ID; static member came back; static member
        kept its part; static member left; sync: NONE; sync: NOT_COORDINATOR; sync:
        REBALANCE_IN_PROGRESS; sync: UNKNOWN_MEMBER_ID; taken over; taken over amid
        appends; told
    """,
}
REACHED = {name: tuple(" ".join(text.split()).split("; ")) for name, text in _REACHED.items()}
"""The conditions by the name of the simulation (`every`)."""
