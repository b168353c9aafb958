/*
 * FSCCL transports: the table of functions that a transport implements. Those that are built in and
 * those of plug-ins, which are shared libraries that FSCCL_TRANSPORT_PLUGIN names, use the same
 * table. examples/transport_plugin.c is a whole one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A channel connects the ranks of one communicator. It gives the engine three things:
 *   signals   Each rank has lines of signals that every peer can read. signal() publishes a line
 *             under a tick; poll() of a peer's tick returns that line once it is there. Everything
 *             a rank wrote to shared memory before signal() is visible to whoever has polled the
 *             line. A rank's line for tick t may be overwritten from tick t + FSCCL_TRANSPORT_TICKS
 *             on: the engine guarantees that all peers have read it by then.
 *   bytes     Each rank has slots in a ring that it alone writes and every rank reads: each tick
 *             that needs one takes the next bytes of it. read() copies from a peer's private
 *             memory. A transport without shared memory *mirrors* slots: a rank has a copy of every
 *             peer's ring, in which it sees what that peer has put() there for it.
 *   failure   A board that any rank can write once and every rank reads: how an error of one rank
 *             ends the waits of all.
 *
 * Threads: functions of one channel are called by one thread at a time; fail, failure, left and
 * hear_out by any, at any time. Several channels are used at once, also of one node, and so are a
 * pair and the channel that it is in. While close() runs, nobody uses the channel. Errors:
 * functions that can fail fill `error` with text that says what to do, and undo what they had
 * begun.
 */
#ifndef FSCCL_TRANSPORT_H
#define FSCCL_TRANSPORT_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Another number: what is here has changed. Later members of a table come at its end, under the
 * same. */
#define FSCCL_TRANSPORT_ABI 1
#define FSCCL_TRANSPORT_TICKS 16u  /* lines a rank has: the window of ticks that may be in use */
#define FSCCL_TRANSPORT_SLOTS 10u  /* that a rank's ring holds at least */
#define FSCCL_TRANSPORT_INLINE 24u /* bytes that a line carries */

/* One signal: 64 bytes, 64-byte aligned. */
typedef struct fsccl_transport_line {
  uint32_t tick;
  /* on which its rank ran when it signalled, -1 if unknown; set by the transport */
  int32_t processor;
  unsigned char fingerprint[32];
  unsigned char payload[FSCCL_TRANSPORT_INLINE];
} fsccl_transport_line_t;

/* Where a waiter may sleep: until *word differs from value. It must count itself in *sleepers while
 * it does.
 *
 * The engine asks for the word, polls once more, counts itself, and sleeps by futex(2), without
 * FUTEX_PRIVATE_FLAG, while *word is `value`: first for 0.2 ms, then for at most 10 ms at a time.
 * So who brings a line, a failure or the end of a peer changes *word behind that, and then wakes
 * all who sleep there if *sleepers is not 0. Both words stay mapped until the channel is closed. */
typedef struct fsccl_transport_word {
  uint32_t* word;
  uint32_t value;
  uint32_t* sleepers;
  /* on which the peer signalled last: if it is the waiter's own, the peer does not run now; -1 if
   * unknown */
  int32_t processor;
} fsccl_transport_word_t;

/* What the first failing rank wrote. */
typedef struct fsccl_transport_failure {
  int32_t code; /* fsccl_status_t */
  int32_t rank; /* who wrote it; -1: a transport, in no rank's name */
  int32_t peer; /* whom it concerns, -1 */
  char text[500];
} fsccl_transport_failure_t;

/* What the library gives a transport that connects the ranks of a job before it opens channels
 * between them. What its pointers lead to is there during join() alone. */
typedef struct fsccl_transport_job {
  size_t size;
  int rank, ranks;
  const unsigned char* key; /* 32 bytes that only the ranks of the job know, the same on all */
  /* FSCCL_CHECKSUM, the same on all: messages carry sums, which their receiver compares. The engine
   * has none of mirrored slots: a transport without sums refuses in join() */
  int checksum;
  const uint64_t* hosts; /* of each rank: the same number for those that share a host */
} fsccl_transport_job_t;

/* What the library gives a transport to open a channel. What its pointers lead to is there during
 * open() alone, but for the node, and for describe(), which can be called as long as the channel is
 * open. */
typedef struct fsccl_transport_request {
  size_t size;
  int rank, ranks;
  void* node;             /* from join(); NULL if the transport has none */
  const int32_t* members; /* rank of the job of each rank */
  const int32_t* pids;    /* process of each rank */
  uint64_t meeting;       /* names the channel: none other of the job has it */
  /* likewise, and names its ranks: where it is not the same on all, they disagree who they are */
  uint64_t tag;
  int64_t deadline_ns; /* on CLOCK_MONOTONIC */
  int single_copy;     /* whether to read peers' private memory: no 0, if all can 1 */
  /* nonzero: all can, if single_copy says so; nobody tries, and open waits for none but who
   * offers */
  int known;
  /* of each slot, at least; 0: the transport chooses; the same on all ranks */
  size_t slot_bytes;
  int32_t* concerns; /* set to the rank that an error concerns */
  void* context;     /* of the functions below */
  /* Offers a descriptor, of which the library keeps a duplicate, to the ranks of this host: one a
   * channel, until all have opened it or this rank's open() has failed. And fetches that of `rank`,
   * for the caller to close: waits for it until the deadline or until cancelled(), and returns -1
   * with `error` filled then, or at once if that rank is on another host. */
  int (*publish_fd)(void* context, int fd, char* error, size_t capacity);
  int (*fetch_fd)(void* context, int rank, char* error, size_t capacity);
  int (*cancelled)(void* context); /* nonzero: a member was lost, give up */
  /* For messages: the number by which each rank is known (NULL: its own), and what operation a line
   * belongs to, in words (NULL: nobody knows). */
  const int32_t* known_as;
  void (*describe)(const fsccl_transport_line_t* line, char* text, size_t capacity);
} fsccl_transport_request_t;

typedef struct fsccl_transport_ops {
  size_t size;
  uint32_t abi; /* FSCCL_TRANSPORT_ABI */
  const char* name;
  /* Whether it can work on this machine; *why* is filled when it cannot. */
  int (*available)(char* why, size_t capacity);

  /* All three NULL, or what the channels of a rank of a job share. join() is called once a job and
   * fills `card`, which has room for *card_bytes and takes so many as it leaves there, with what
   * the other ranks need to reach this one. connect() gets the cards of all ranks, each
   * `card_bytes` apart, which is the largest's size; it blocks for nobody. leave() comes after the
   * last channel is closed, also where connect() failed or some other rank could not join(), and
   * returns when what was sent has left, or ten seconds have passed. */
  fsccl_status_t (*join)(const fsccl_transport_job_t* job, void** node, unsigned char* card,
                         size_t* card_bytes, char* error, size_t capacity);
  fsccl_status_t (*connect)(void* node, const unsigned char* cards, size_t card_bytes, char* error,
                            size_t capacity);
  void (*leave)(void* node);

  /* Collective over the ranks of the request; blocking until its deadline. It need not wait for the
   * others: what a rank signals and puts for one that has yet to open the channel must be there
   * once that has. *first_tick: the first tick that the engine may use, equal on all ranks; the
   * others follow, modulo 2^32. */
  fsccl_status_t (*open)(const fsccl_transport_request_t* request, void** channel,
                         uint32_t* first_tick, char* error, size_t capacity);
  void (*close)(void* channel);

  void (*signal)(void* channel, const fsccl_transport_line_t* line);
  const fsccl_transport_line_t* (*poll)(void* channel, int peer, uint32_t tick);
  void (*word)(void* channel, int peer, uint32_t tick, fsccl_transport_word_t* word);

  /* 1: read() works between all ranks of the channel. The same answer on all ranks. */
  int (*can_read)(void* channel);
  fsccl_status_t (*read)(void* channel, int peer, uint64_t address, void* destination, size_t bytes,
                         char* error, size_t capacity);
  /* The ring of `rank`, *ring_bytes long, for slots of at most *slot_bytes, of which it holds
   * FSCCL_TRANSPORT_SLOTS or more. Multiples of 64, the same for all ranks: once all have opened
   * the channel, the engine compares the size of slots and names on every rank who has another, so
   * open() need not. Of a transport that mirrors slots, a tenth of what is more than these is the
   * size up to which slots go round in memory of their own, at the ring's beginning. */
  void* (*slots)(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes);
  /* Makes sure of the memory that this rank writes to in rings; called before it does, perhaps more
   * than once. */
  fsccl_status_t (*reserve)(void* channel, char* error, size_t capacity);

  /* Both only of a transport that mirrors slots, else NULL. put: from byte `at` of this rank's ring
   * on, `peer` sees the bytes that lie at `source` until the next signal() has returned, once it
   * has polled that line. They may be copied to this rank's own ring, not read any more once `peer`
   * has them. `peer` is another rank, and what it sees is a copy: the place in this rank's own ring
   * may change while it looks. rest: the caller goes away; what was signalled must arrive
   * nevertheless. */
  void (*put)(void* channel, int peer, size_t at, const void* source, size_t bytes);
  void (*rest)(void* channel);
  /* Beside put, or both NULL. expect: the `bytes` bytes that `peer` will put from byte `at` of its
   * ring on, under `tick`, are wanted at `destination`. Until it says that `tick` is there, or the
   * board is written, the transport may write them there and not to the mirror; no later. placed:
   * whether it did (1), of a tick that is there. */
  void (*expect)(void* channel, int peer, uint32_t tick, size_t at, void* destination,
                 size_t bytes);
  int (*placed)(void* channel, int peer, uint32_t tick, size_t at, size_t bytes);

  /* Writes the board if nobody has. */
  void (*fail)(void* channel, const fsccl_transport_failure_t* failure);
  /* The board, or NULL. */
  const fsccl_transport_failure_t* (*failure)(void* channel);
  /* 1: `peer` has closed its channel; what it signalled before can still be polled. */
  int (*left)(void* channel, int peer);
  /* A channel of two ranks inside this one, for what rank `from` sends to rank `to`: they are its
   * ranks 0 and 1. Called by each of the two when it first needs it, once, blocks for nobody.
   * Shares the board; is closed before this one. Only rank 0 has slots, as large as the transport
   * chooses. */
  fsccl_status_t (*pair)(void* channel, int from, int to, void** pair, uint32_t* first_tick,
                         char* error, size_t capacity);

  /* 1: who moves what put() or expect() named may keep its physical pages (a network card that
   * memory is registered with), so a pool must not change the pages behind an address. 0: bytes are
   * moved by address, and nobody looks at them afterwards. */
  int keeps_pages;

  /* Both, or both NULL: a transport that can move what is put in several ways, of which now one and
   * now another is the fastest. path: the name of way `number`, NULL behind the last; at most one
   * where the settings have chosen. take_path: what this rank puts for `peer`, in any channel of
   * the node, goes that way from now on. 1: it does; 0: not until the two have told each other what
   * that takes, which they do as both poll once something large was put; till then it goes way 0,
   * which always works; -1: never. */
  const char* (*path)(void* channel, int number);
  int (*take_path)(void* channel, int peer, int number);

  /* Of a transport that mirrors slots; NULL: plans that need it are not made. signal() for one
   * peer: what was put for that one is there when it has polled the line, what was put for others
   * waits for theirs. */
  void (*signal_to)(void* channel, int peer, const fsccl_transport_line_t* line);

  /* Takes in all that has come by now, whoever else is at it: what a rank told before it ended is
   * on the board then. NULL: what was told always is. By any thread. */
  void (*hear_out)(void* channel);

  /* Of a transport that mirrors slots, or NULL. Another signal() for all comes right behind the
   * next one, and nothing but put() before it: what the next one says may leave with that, and what
   * was put for it lies there until then. */
  void (*hold)(void* channel);

  /* Of a transport whose lines are memory that peers look at, or NULL. This rank's next signal() is
   * that of `tick`, most likely: its line can be fetched from whoever has looked at it last, while
   * the caller is elsewhere. */
  void (*prepare)(void* channel, uint32_t tick);
} fsccl_transport_ops_t;

/* What a plug-in exports, with this name and default visibility. Returns its table, which lives as
 * long as the process, or NULL if it has none of this ABI (the FSCCL_TRANSPORT_ABI of the library
 * that asks). Called by any thread, for one path not again once it has given a table that is taken;
 * the plug-in is never unloaded.
 *
 * It may join ranks of several hosts: join, connect, leave, put and rest are needed, and a node
 * that is not NULL. Needed besides: available, open, close, signal, poll, word, can_read, read,
 * slots, reserve, fail, failure, left, pair. expect and placed, path and take_path come together or
 * not at all; signal_to, hear_out, hold and prepare may be NULL. `size` is that of the table which
 * the plug-in was built with; what a shorter one lacks is NULL. `name`: 1 to 15 of a-z, 0-9, _ and
 * -; no built-in transport's. The same on all ranks; what else must be, such as a version of its
 * own, a plug-in compares by its cards. FSCCL_ERR_NOT_AVAILABLE says what is wrong with a plug-in,
 * on all ranks, and which rank has it. */
const fsccl_transport_ops_t* fsccl_transport_plugin(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_TRANSPORT_H */
