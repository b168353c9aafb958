/*
 * FSCCL publish: the weights of a training job for processes outside of it, such as inference,
 * evaluation and moving averages. docs/publish.md says how it works and what holds.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FSCCL_PUBLISH_H
#define FSCCL_PUBLISH_H

#include "fsccl/fsccl.h"
#include "fsccl/redistribute.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fsccl_publisher_s* fsccl_publisher_t;   /* a rank's part of a publication */
typedef struct fsccl_subscriber_s* fsccl_subscriber_t; /* a process that receives one */

#define FSCCL_PUBLISH_EXACT FSCCL_DTYPE_COUNT /* a wire_dtype: every parameter in its own type */

typedef struct fsccl_publish_config {
  size_t size;
  /* `count` of them, 1 to 2^20, the same on all ranks but for `shard`: name, dims, shape, dtype,
   * tied_to and the block are read, and `shard`, where this rank's piece lies (host memory) */
  const fsccl_param_t* params;
  size_t count;
  /* how the ranks of the communicator share the parameters: rank r holds the piece that
   * fsccl_layout_plan() gives to rank r */
  fsccl_layout_t layout;
  /* the parameters of each unit, `units` numbers whose sum is `count`; tied_to is counted in the
   * unit. Units of the flat layout lie end to end each for itself. NULL: all are one unit */
  const size_t* unit_params;
  size_t units;
  /* the type in which fp32 and fp64 are published, FSCCL_BFLOAT16, FSCCL_FLOAT16 or
   * FSCCL_FLOAT32, rounded to nearest even; FSCCL_PUBLISH_EXACT: as they are. Other types are
   * never converted */
  fsccl_dtype_t wire_dtype;
  /* the most bytes that this rank keeps for subscribers (encoded differences, called records, and
   * blocks of whole copies), beside the copy of the newest version; 0: as many as the copy has, and
   * 16 MiB at least */
  uint64_t limit_bytes;
  /* a subscriber that reads less than 256 KiB in this time of what waits for it is disconnected; 0:
   * FSCCL_TIMEOUT_MS */
  int64_t timeout_ms;
  int64_t linger_ms;   /* fsccl_publisher_destroy() waits for subscribers at most so long */
  uint32_t flags;      /* FSCCL_CODEC_NIBBLES_ONLY: more bytes, less time of processors */
  int port;            /* TCP, where this rank is asked; 0: any. Ranks of one host differ */
  int max_subscribers; /* subscribers that this rank takes at once */
  const char* name;    /* for messages; copied; NULL: "weights" */
  size_t param_size; /* sizeof(fsccl_param_t) as the caller was compiled; 0: that of release 0.1 */
} fsccl_publish_config_t;
#define FSCCL_PUBLISH_CONFIG_INIT  \
  {sizeof(fsccl_publish_config_t), \
   NULL,                           \
   0,                              \
   FSCCL_LAYOUT_PER_PARAM,         \
   NULL,                           \
   0,                              \
   FSCCL_BFLOAT16,                 \
   0,                              \
   0,                              \
   2000,                           \
   0u,                             \
   0,                              \
   64,                             \
   NULL,                           \
   sizeof(fsccl_param_t)}

/*
 * Makes a publication and begins to listen for subscribers, on a Unix socket and, unless
 * FSCCL_BOOTSTRAP_TCP=0, on TCP. Collective over `comm`; blocking. The publication does not use
 * `comm` afterwards: the two may be destroyed in any order, and what happens to one does not touch
 * the other. Takes memory for a copy of what is published, 2 bytes for each 16-bit word of this
 * rank's pieces. Errors besides: FSCCL_ERR_MISMATCH (ranks differ in what must be alike: the text
 * names the rank), FSCCL_ERR_NOT_AVAILABLE (a piece is memory of a GPU: publish a copy in host
 * memory), FSCCL_ERR_CONFIG (the port is in use; the secret's file is not accepted),
 * FSCCL_ERR_OUT_OF_MEMORY, FSCCL_ERR_LIMIT (a name of more than 4096 bytes, or names and shapes of
 * more than 256 MiB together).
 */
FSCCL_API fsccl_status_t fsccl_publisher_create(const fsccl_publish_config_t* config,
                                                fsccl_comm_t comm, fsccl_publisher_t* publisher);

/*
 * Publishes this rank's pieces as they are now, as version 1, 2, 3, ... of this publication.
 * shards: one address per parameter (of tied and empty ones not looked at), which are used from now
 * on; NULL: where they were. `label`: a number of the caller's that goes with the version, such as
 * the step, the same on all ranks. Not collective: each rank calls it once for each version, and
 * subscribers see a version when all ranks have published it. Does not wait for subscribers or
 * other ranks. Blocks while it encodes (docs/publish.md has the time); when it returns, the pieces
 * may be changed. A call that fails counts: subscribers never see its version, and this rank's next
 * call publishes the version after it. FSCCL_ERR_NOT_AVAILABLE: a piece is memory of a GPU. One
 * thread at a time for each publisher.
 */
FSCCL_API fsccl_status_t fsccl_publish(fsccl_publisher_t publisher, const void* const* shards,
                                       uint64_t label);

/* Writes into *ticket where this publication is and the key to it, the same for every rank's
 * publisher of it: hand it to subscribers over a channel that you trust (a file with mode 0600, a
 * pipe). Whoever has it can read the weights, and cannot join the job. Any thread. */
FSCCL_API fsccl_status_t fsccl_publisher_ticket(fsccl_publisher_t publisher,
                                                fsccl_unique_id_t* ticket);

/* The memory and the figures of this rank's publisher. Sums are since it was made. */
typedef struct fsccl_publish_report {
  size_t size;
  uint64_t version; /* the newest */
  /* bytes of this rank's pieces as 16-bit words: what a plain copy of them takes */
  uint64_t words_bytes;
  uint64_t copy_bytes; /* bytes of the copy of what was published last */
  /* bytes of records and kept blocks now, and at most so far */
  uint64_t held_bytes, held_peak_bytes;
  uint64_t sending_bytes; /* bytes of the blocks being sent, one for each subscriber */
  uint64_t limit_bytes;
  uint64_t record_bytes;  /* bytes of the newest record; 0: none was made */
  uint64_t records_bytes; /* bytes of all records that were made */
  uint64_t records;       /* how many records were made */
  uint64_t sent_bytes;    /* bytes to subscribers, in all */
  uint64_t whole_copies;  /* whole copies that were begun */
  uint64_t given_up;      /* whole copies and records cut off for the limit or for lack of memory */
  uint64_t disconnected;  /* subscribers that took too little in timeout_ms */
  uint64_t strangers;     /* connections that did not prove that they know the key */
  double publish_cpu_s;   /* processor time of fsccl_publish() */
  double serving_cpu_s;   /* processor time of the service thread for subscribers */
  int subscribers;        /* connected now */
  int port;               /* TCP; 0: none */
} fsccl_publish_report_t;
#define FSCCL_PUBLISH_REPORT_INIT \
  {sizeof(fsccl_publish_report_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0, 0}
/* Does not block; any thread. */
FSCCL_API fsccl_status_t fsccl_publisher_report(fsccl_publisher_t publisher,
                                                fsccl_publish_report_t* report);

/* Ends this rank's part of the publication. Waits, at most linger_ms, until the subscribers that
 * are connected have its newest version. Not collective. */
FSCCL_API fsccl_status_t fsccl_publisher_destroy(fsccl_publisher_t publisher);

typedef struct fsccl_subscribe_config {
  size_t size;
  const fsccl_unique_id_t* ticket; /* the ticket from fsccl_publisher_ticket(); NULL: by address */
  /* "host:port" of any rank of the publication, where both have the same FSCCL_JOB_SECRET_FILE */
  const char* address;
  /* The parameters that are wanted, `count` of them, 1 to 2^20: found by their names, or, where
   * a name is NULL, by their places; dims and shape must be those published. dtype: of `shard`,
   * the caller's memory, to which fsccl_subscriber_update() writes; floats are converted from
   * what is published, others must be equal. tied_to, and the block of ragged layouts, as for
   * fsccl_layout_plan() */
  const fsccl_param_t* params;
  size_t count;
  /* this process's piece of each parameter: shard `rank` of `ranks` shards in this layout. ranks 1,
   * rank 0: the whole parameter */
  fsccl_sharding_t sharding;
  /* limit of every wait; a rank that sends nothing for this time, but at least 3 s, is lost; 0:
   * FSCCL_TIMEOUT_MS */
  int64_t timeout_ms;
  const char* name;  /* for messages; copied; NULL: "subscriber" */
  size_t param_size; /* sizeof(fsccl_param_t) as the caller was compiled; 0: that of release 0.1 */
} fsccl_subscribe_config_t;
#define FSCCL_SUBSCRIBE_CONFIG_INIT  \
  {sizeof(fsccl_subscribe_config_t), \
   NULL,                             \
   NULL,                             \
   NULL,                             \
   0,                                \
   {FSCCL_LAYOUT_PER_PARAM, 1, 0},   \
   0,                                \
   NULL,                             \
   sizeof(fsccl_param_t)}

/*
 * Subscribes to a publication and begins to receive it, in a thread of the library. Needs no
 * communicator. Blocks until every rank that holds something of what is wanted is connected, at
 * most timeout_ms. Until then it tries again and again, so by address a publication is found that
 * begins later; a host name must be known when the call begins. A ticket is of a publication that
 * has begun, so refusals soon end the call. A rank that has max_subscribers is tried again, too.
 * The error's text says what was answered at each address.
 * The memory at params[i].shard must live as long as the subscriber; the library writes there in
 * fsccl_subscriber_update() alone. Errors: FSCCL_ERR_AUTH (the other side does not know the key),
 * FSCCL_ERR_PEER_DEAD (nobody listens there), FSCCL_ERR_TIMEOUT, FSCCL_ERR_VERSION,
 * FSCCL_ERR_MISMATCH (a parameter is not published, or with another shape or type, or several have
 * its name: the text names it), FSCCL_ERR_NOT_AVAILABLE (memory of a GPU; blocks that are not
 * stored in row-major order go between ragged and another layout), FSCCL_ERR_LIMIT (the rank still
 * has max_subscribers after timeout_ms, or this process may open no more files).
 */
FSCCL_API fsccl_status_t fsccl_subscribe(const fsccl_subscribe_config_t* config,
                                         fsccl_subscriber_t* subscriber);

/* A version. */
typedef struct fsccl_publication {
  size_t size;
  uint64_t version; /* 0: none yet */
  uint64_t label;   /* the label given to fsccl_publish() */
} fsccl_publication_t;
#define FSCCL_PUBLICATION_INIT {sizeof(fsccl_publication_t), 0, 0}
/*
 * Writes the newest complete version to the memory of the subscriber's parameters, and its number
 * and label to `publication` (NULL: not wanted). If there is no newer version than the last one
 * written, waits for one at most timeout_ms (negative: the subscriber's own timeout; 0: does not
 * wait, also not for a version that the library's thread is applying). Returns FSCCL_OK when it has
 * written a version. Otherwise nothing has changed, and it returns FSCCL_IN_PROGRESS when the time
 * has passed, or, when the publication has ended and its
 * last complete version was written, FSCCL_ERR_PEER_DEAD or FSCCL_ERR_TIMEOUT, which name the rank.
 * One thread at a time for each subscriber.
 */
FSCCL_API fsccl_status_t fsccl_subscriber_update(fsccl_subscriber_t subscriber, int64_t timeout_ms,
                                                 fsccl_publication_t* publication);

/* The figures of a subscriber. Sums are since it was made. */
typedef struct fsccl_subscribe_report {
  size_t size;
  uint64_t version;        /* the newest that is complete here */
  uint64_t newest;         /* the newest that all ranks have published, as far as known here */
  uint64_t words_bytes;    /* bytes of a plain copy of what the ranks hold that are subscribed to */
  uint64_t received_bytes; /* payload: records and whole copies */
  uint64_t whole_bytes;    /* the part of these that were whole copies */
  uint64_t versions;       /* versions that became complete here */
  uint64_t whole_copies;   /* whole copies of a rank's part */
  uint64_t damaged;        /* parts whose sum was wrong */
  uint64_t reconnections;
  uint64_t held_bytes; /* memory: words and records */
  double apply_cpu_s;  /* processor time of applying, and of fsccl_subscriber_update() */
} fsccl_subscribe_report_t;
#define FSCCL_SUBSCRIBE_REPORT_INIT \
  {sizeof(fsccl_subscribe_report_t), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.0}
/* Does not block; any thread. */
FSCCL_API fsccl_status_t fsccl_subscriber_report(fsccl_subscriber_t subscriber,
                                                 fsccl_subscribe_report_t* report);

/* Leaves the publication and frees what was received. Waits until calls of other threads on the
 * subscriber have returned. */
FSCCL_API fsccl_status_t fsccl_subscriber_destroy(fsccl_subscriber_t subscriber);

#ifdef __cplusplus
}
#endif

#endif /* FSCCL_PUBLISH_H */
