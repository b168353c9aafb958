/*
 * FSCCL transports: the table of functions that a transport of another maker implements. Such a
 * plug-in is a shared library that FSCCL_TRANSPORT_PLUGIN names. examples/transport_plugin.c is a
 * whole one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A channel connects the ranks of one communicator. It gives the engine three things:
 *   signals   Each rank has lines of signals that every peer can read. signal() publishes a line
 *             under a tick; poll() of a peer's tick returns that line once it is there. Everything
 *             a rank wrote to shared memory before signal() is visible to a rank that has polled
 *             the line. A rank's line for tick t may be overwritten from tick
 *             t + FSCCL_TRANSPORT_TICKS on: the engine guarantees that all peers have read it by
 *             then.
 *   bytes     Each rank has a ring of slots (send buffers) that it alone writes and every rank
 *             reads. A tick that sends bytes through a slot takes the next bytes of the ring.
 *             read() copies from a peer's private memory. A transport without shared memory
 *             *mirrors* slots: a rank has a copy of every peer's ring, in which it sees what that
 *             peer has put() there for it.
 *   failure   A board that any rank can write once and every rank reads: how an error of one rank
 *             ends the waits of all.
 *
 * Threads: one thread at a time calls the functions of a channel, but any thread calls fail,
 * failure, left and hear_out at any time. Threads use several channels at once, also of one node,
 * and a pair beside the channel that it is in. While close() runs, nobody uses the channel. Errors:
 * functions that can fail fill `error` with text that says what to do, and undo what they had
 * begun.
 */
#ifndef FSCCL_TRANSPORT_H
#define FSCCL_TRANSPORT_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number changes when anything here changes. New members of a table come at its end, without
 * a new number. */
#define FSCCL_TRANSPORT_ABI 1
#define FSCCL_TRANSPORT_TICKS 16u  /* lines a rank has: the window of ticks that may be in use */
#define FSCCL_TRANSPORT_SLOTS 10u  /* slots that a rank's ring holds at least */
#define FSCCL_TRANSPORT_INLINE 24u /* bytes that a line carries */

/* One signal: 64 bytes, 64-byte aligned. */
typedef struct fsccl_transport_line {
  uint32_t tick;
  /* the processor on which its rank ran when it signalled, -1 if unknown; set by the transport */
  int32_t processor;
  unsigned char fingerprint[32];
  unsigned char payload[FSCCL_TRANSPORT_INLINE];
} fsccl_transport_line_t;

/* The word on which a waiter may sleep until it differs from value. The waiter must count itself in
 * *sleepers while it does.
 *
 * The engine asks for the word, polls once more, counts itself, and sleeps by futex(2), without
 * FUTEX_PRIVATE_FLAG, while *word is `value`: first for 0.2 ms, then for at most 10 ms at a time. A
 * transport that brings a line, a failure or the end of a peer therefore changes *word after that,
 * and then wakes all sleepers there if *sleepers is not 0. Both words stay mapped until the channel
 * is closed. */
typedef struct fsccl_transport_word {
  uint32_t* word;
  uint32_t value;
  uint32_t* sleepers;
  /* the processor on which the peer signalled last: if it is the waiter's own, the peer does not
   * run now; -1 if unknown */
  int32_t processor;
} fsccl_transport_word_t;

/* The content of the board, which the first failing rank writes. */
typedef struct fsccl_transport_failure {
  int32_t code; /* fsccl_status_t */
  int32_t rank; /* the rank that wrote it; -1: a transport, in no rank's name */
  int32_t peer; /* the rank that it concerns; -1: none */
  char text[500];
} fsccl_transport_failure_t;

/* The arguments of join(), for a transport that connects the ranks of a job before it opens
 * channels between them. Its pointers are valid during join() alone. */
typedef struct fsccl_transport_job {
  size_t size;
  int rank, ranks;
  const unsigned char* key; /* 32 bytes that only the ranks of the job know, the same on all */
  /* FSCCL_CHECKSUM, the same on all: messages carry checksums, which their receiver compares. The
   * engine makes none of mirrored slots: a transport without checksums refuses in join() */
  int checksum;
  const uint64_t* hosts; /* a number for each rank: ranks that share a host have the same */
} fsccl_transport_job_t;

/* The arguments of open(). Its pointers are valid during open() alone, except the node, and
 * except describe(), which can be called as long as the channel is open. */
typedef struct fsccl_transport_request {
  size_t size;
  int rank, ranks;
  void* node;             /* from join(); NULL if the transport has none */
  const int32_t* members; /* the job's rank of each rank of the channel */
  const int32_t* pids;    /* process of each rank */
  uint64_t meeting;       /* names the channel: none other of the job has it */
  /* names the channel and its ranks: where it is not the same on all, the ranks disagree about
   * the members */
  uint64_t tag;
  int64_t deadline_ns; /* on CLOCK_MONOTONIC */
  int single_copy;     /* says whether to read peers' private memory. 0: no; 1: if all ranks can */
  /* nonzero: all ranks can, if single_copy is 1; no rank tries, and open() waits only for ranks
   * that offer a descriptor */
  int known;
  /* bytes of each slot, at least; 0: the transport chooses; the same on all ranks */
  size_t slot_bytes;
  int32_t* concerns; /* set to the rank that an error concerns */
  void* context;     /* first argument of the functions below */
  /* publish_fd() offers a descriptor, of which the library keeps a duplicate, to the ranks of
   * this host: one a channel, until all have opened it or this rank's open() has failed.
   * fetch_fd() returns the descriptor of `rank`, which the caller closes. It waits until the
   * deadline or until cancelled(), and then returns -1 with `error` filled; it does so at once
   * if that rank is on another host. */
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
  /* Returns 1 if the transport can work on this machine, and 0, with `why` filled, if not. */
  int (*available)(char* why, size_t capacity);

  /* These make and end the node, which all channels of a rank of a job share; all three are NULL
   * if there is none. join() is called once a job and writes this rank's endpoint address, which
   * other ranks need to reach it, to `address`: there is room for *address_bytes, and join()
   * sets that to the bytes it took. connect() gets the addresses of all ranks, `address_bytes`
   * apart, which is the size of the largest; it blocks for nobody. leave() is called after the
   * last channel is closed, also where connect() failed or another rank could not join(). It
   * returns when everything that was sent has left, or after ten seconds. */
  fsccl_status_t (*join)(const fsccl_transport_job_t* job, void** node, unsigned char* address,
                         size_t* address_bytes, char* error, size_t capacity);
  fsccl_status_t (*connect)(void* node, const unsigned char* addresses, size_t address_bytes,
                            char* error, size_t capacity);
  void (*leave)(void* node);

  /* Collective over the ranks of the request; blocking until its deadline. It need not wait for
   * the others: signals and puts for a rank that has yet to open the channel must be there once
   * it has. *first_tick: the first tick that the engine may use, equal on all ranks; the others
   * follow, modulo 2^32. */
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
   * FSCCL_TRANSPORT_SLOTS or more. Both are multiples of 64 and the same for all ranks: once all
   * have opened the channel, the engine compares the sizes and names the rank that differs, so
   * open() need not. In a transport that mirrors slots, the ring may be longer than
   * FSCCL_TRANSPORT_SLOTS slots of *slot_bytes. A tenth of the excess is then the size up to
   * which a slot counts as small: small slots go round in memory of their own, at the ring's
   * beginning. */
  void* (*slots)(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes);
  /* Allocates the memory of the rings to which this rank writes. Called before the first write,
   * perhaps more than once. */
  fsccl_status_t (*reserve)(void* channel, char* error, size_t capacity);

  /* Both are needed by a transport that mirrors slots, and NULL otherwise. put(): once `peer`
   * has polled the line of the next signal(), it sees the bytes of `source` from byte `at` of
   * this rank's ring on. `source` must not change until that signal() has returned. The
   * transport may copy the bytes to this rank's own ring, and does not read them any more once
   * `peer` has them. `peer` is another rank and sees a copy: this rank's own ring may change
   * while it looks. rest(): the caller stops polling; what was given by signal() must
   * arrive nevertheless, so progress goes on in the background. */
  void (*put)(void* channel, int peer, size_t at, const void* source, size_t bytes);
  void (*rest)(void* channel);
  /* Both or neither, beside put(). expect(): the caller wants the `bytes` bytes that `peer` will
   * put from byte `at` of its ring on, under `tick`, at `destination`. Until poll() has returned
   * that tick, or the board is written, the transport may write them there instead of to the
   * mirror; no later. placed(): returns 1 if it did so for a tick that has come. */
  void (*expect)(void* channel, int peer, uint32_t tick, size_t at, void* destination,
                 size_t bytes);
  int (*placed)(void* channel, int peer, uint32_t tick, size_t at, size_t bytes);

  /* Writes the board if nobody has, and wakes whoever sleeps in the channel or in one of its
   * pairs, on all ranks; fail() of a pair does the same. */
  void (*fail)(void* channel, const fsccl_transport_failure_t* failure);
  /* The board, or NULL. */
  const fsccl_transport_failure_t* (*failure)(void* channel);
  /* Returns 1 if `peer` has closed its channel, and else 0. Lines that it signalled before can
   * still be polled. */
  int (*left)(void* channel, int peer);
  /* A channel of two ranks inside this one, for what rank `from` sends to rank `to`: they are its
   * ranks 0 and 1. Called by each of the two when it first needs it, once, blocks for nobody.
   * Shares the board; is closed before this one. Only rank 0 has slots, as large as the transport
   * chooses. */
  fsccl_status_t (*pair)(void* channel, int from, int to, void** pair, uint32_t* first_tick,
                         char* error, size_t capacity);

  /* 1: the device that moves the bytes of put() or expect() may keep their physical pages (a
   * network card with which memory is registered), so a pool must not change the pages behind an
   * address. 0: bytes are moved by address, and nobody reads them afterwards. */
  int keeps_pages;

  /* Both or neither: for a transport that can move bytes by several paths, of which now one and
   * now another is the fastest. path(): returns the name of path `number`, NULL behind the last;
   * there is at most one where the settings have chosen. take_path(): from now on this rank's
   * puts for `peer`, in any channel of the node, take that path. Returns 1: they do. 0: not yet,
   * because the two ranks have to exchange what the path needs; they do so as both poll once
   * something large was put, and path 0, which always works, is taken till then. -1: never. */
  const char* (*path)(void* channel, int number);
  int (*take_path)(void* channel, int peer, int number);

  /* For a transport that mirrors slots; NULL: plans that need it are not made. A signal() for
   * one peer: bytes that were put for that peer are there when it has polled the line; bytes for
   * other peers wait for the lines of these. */
  void (*signal_to)(void* channel, int peer, const fsccl_transport_line_t* line);

  /* Receives everything that has arrived, also while another thread does so. Afterwards failures
   * that a rank sent before it ended are on the board. NULL: they are there without a call. Any
   * thread. */
  void (*hear_out)(void* channel);

  /* For a transport that mirrors slots, or NULL. The caller announces two signals for all: after
   * the next signal() only put() is called before another signal(). The transport may send the
   * first together with the second; the bytes that were put for the first do not change until
   * then. */
  void (*hold)(void* channel);

  /* For a transport whose lines are memory that peers look at, or NULL. This rank's next
   * signal() is most likely that of `tick`: the transport can fetch its line from the core that
   * looked at it last, while the caller does something else. */
  void (*prepare)(void* channel, uint32_t tick);
} fsccl_transport_ops_t;

/* A plug-in exports this function, with this name and default visibility. It returns the plug-in's
 * table, which lives as long as the process, or NULL if it has none of this ABI (the
 * FSCCL_TRANSPORT_ABI of the library that asks). Called by any thread, for one path not again once
 * it has given a table that is taken; the plug-in is never unloaded.
 *
 * It may join ranks of several hosts: join, connect, leave, put and rest are needed, and a node
 * that is not NULL. Needed besides: available, open, close, signal, poll, word, can_read, read,
 * slots, reserve, fail, failure, left, pair. expect and placed, path and take_path come together or
 * not at all; signal_to, hear_out, hold and prepare may be NULL. `size` is that of the table which
 * the plug-in was built with; members that a shorter table lacks are NULL. `name`: 1 to 15 of a-z,
 * 0-9, _ and -; no built-in transport's. The name is the same on all ranks; a plug-in compares
 * other things that must be equal, such as a version of its own, by its endpoint addresses.
 * FSCCL_ERR_NOT_AVAILABLE says what is wrong with a plug-in, on all ranks, and which rank has it.
 */
const fsccl_transport_ops_t* fsccl_transport_plugin(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_TRANSPORT_H */
