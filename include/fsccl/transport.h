/*
 * FSCCL transports: the table of functions that a transport of another maker implements. Such a
 * plug-in is a shared library that FSCCL_TRANSPORT_PLUGIN names. examples/transport_plugin.c is a
 * complete one.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A channel connects the ranks of one communicator. The part of the library that calls it is the
 * engine, which carries out the operations of the communicator. A channel gives the engine three
 * things:
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
 *   failure   A board that any rank can write once and every rank reads. Through it an error of
 *             one rank ends the waits of all.
 *
 * Threads: The engine calls a channel from one thread at a time. This may be a thread of the
 * program or the library's own. Any thread may call fail, failure, left, hear_out and pair at any
 * time, also while another thread is in the channel. Different channels are used by different
 * threads at once, even if they share a node; a pair counts as another channel than the one that it
 * is in. While close() runs, no other function of the channel does.
 *
 * Errors: Functions that can fail fill `error` with text that says what to do, and undo what they
 * had begun.
 */
#ifndef FSCCL_TRANSPORT_H
#define FSCCL_TRANSPORT_H

#include "fsccl/fsccl.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The number changes if anything here changes, except for new members at the end of a table. */
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

/* A word on which a waiting thread may sleep until it differs from `value`. word() fills this in
 * when a thread of the engine has polled in vain and is about to sleep.
 *
 * The thread asks for the word, polls once more, counts itself in *sleepers, and sleeps by
 * futex(2), without FUTEX_PRIVATE_FLAG, while *word is `value`: first for 0.2 ms, then for at most
 * 10 ms at a time. The transport must do its part in this order: it makes the line, the failure or
 * the end of a peer visible, then changes *word, and then wakes all sleepers on it if *sleepers is
 * not 0. Both words stay mapped until the channel is closed. */
typedef struct fsccl_transport_word {
  uint32_t* word;
  uint32_t value;
  uint32_t* sleepers;
  /* the processor on which the peer signalled last, -1 if unknown. If the waiting thread runs on
   * the same one, the peer does not run now */
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
 * channels between them. The pointers are valid during join() only. */
typedef struct fsccl_transport_job {
  size_t size;
  int rank, ranks;
  const unsigned char* key; /* 32 bytes that only the ranks of the job know, the same on all */
  /* FSCCL_CHECKSUM, the same on all ranks. If it is 1, messages carry checksums, and the receiver
   * compares them. The engine makes no checksums of mirrored slots, so a transport without
   * checksums must refuse in join() */
  int checksum;
  const uint64_t* hosts; /* a number for each rank, equal for ranks that share a host */
} fsccl_transport_job_t;

/* The arguments of open(). The pointers are valid during open() only, except the node, and except
 * describe(), which may be called as long as the channel is open. */
typedef struct fsccl_transport_request {
  size_t size;
  int rank, ranks;
  void* node;             /* from join(); NULL if the transport has none */
  const int32_t* members; /* the job's rank of each rank of the channel */
  const int32_t* pids;    /* the process of each rank */
  /* Identifies the channel within the job: all its ranks give the same number, and no other
   * channel has it. A transport finds by it the channel to which an arriving message belongs. */
  uint64_t meeting;
  /* A hash of `meeting` and of the members. If two ranks give the same `meeting` and different
   * tags, they disagree about the members, and open() or fail() reports FSCCL_ERR_MISMATCH. */
  uint64_t tag;
  int64_t deadline_ns; /* on CLOCK_MONOTONIC */
  /* 1: read peers' private memory, if all ranks can; 0: do not */
  int single_copy;
  /* Nonzero: these ranks have a channel of this transport already, so it is known that they all can
   * read if single_copy is 1. No rank tries it then, and open() waits only for ranks whose
   * descriptor it needs. */
  int known;
  /* the least number of bytes of a slot; 0: the transport chooses; the same on all ranks */
  size_t slot_bytes;
  int32_t* concerns; /* open() sets it to the rank that its error concerns */
  void* context;     /* the first argument of the functions below */
  /* publish_fd() offers a descriptor to the ranks of this host; the library keeps a duplicate. A
   * channel offers one descriptor, until all ranks have opened the channel or open() has failed on
   * this rank. fetch_fd() returns the descriptor that `rank` offers, and the caller closes it. It
   * waits until the deadline or until cancelled(), and then returns -1 with `error` filled. If that
   * rank is on another host, it does so at once. */
  int (*publish_fd)(void* context, int fd, char* error, size_t capacity);
  int (*fetch_fd)(void* context, int rank, char* error, size_t capacity);
  int (*cancelled)(void* context); /* nonzero: a member was lost, so open() should give up */
  /* These serve for texts of errors: known_as has the number by which users know each rank (NULL:
   * the same number), and describe() tells in words to which operation a line belongs (NULL:
   * unknown). */
  const int32_t* known_as;
  void (*describe)(const fsccl_transport_line_t* line, char* text, size_t capacity);
} fsccl_transport_request_t;

typedef struct fsccl_transport_ops {
  size_t size;
  uint32_t abi; /* FSCCL_TRANSPORT_ABI */
  const char* name;
  /* Returns 1 if the transport can work on this machine, and 0, with `why` filled, if not. */
  int (*available)(char* why, size_t capacity);

  /* These make and end the node, which all channels of a rank of a job share. A plug-in has all
   * three. join() is called once a job. It writes this rank's endpoint address, by which other
   * ranks reach it, to `address`. It may write up to *address_bytes bytes and sets that to the
   * number that it wrote. connect() gets the addresses of all ranks, which are `address_bytes`
   * apart (the size of the largest); it must not wait for other ranks. leave() is called after the
   * last channel is closed, also if connect() failed or another rank could not join(). It returns
   * when everything that was sent has left, or after ten seconds. */
  fsccl_status_t (*join)(const fsccl_transport_job_t* job, void** node, unsigned char* address,
                         size_t* address_bytes, char* error, size_t capacity);
  fsccl_status_t (*connect)(void* node, const unsigned char* addresses, size_t address_bytes,
                            char* error, size_t capacity);
  void (*leave)(void* node);

  /* open() opens a channel. All ranks of the request call it, and it may block until the deadline.
   * It need not wait for the others: if a rank opens the channel late, signals and puts that peers
   * sent it before must be there afterwards. *first_tick is set to the first tick that the engine
   * may use, the same on all ranks; the later ones follow, modulo 2^32. close() closes the channel;
   * the peers then learn of it by left(). */
  fsccl_status_t (*open)(const fsccl_transport_request_t* request, void** channel,
                         uint32_t* first_tick, char* error, size_t capacity);
  void (*close)(void* channel);

  /* signal() publishes this rank's line to all peers and does not wait for them. poll() returns the
   * line that `peer` published under `tick`, or NULL if it has not arrived; it also makes progress,
   * for a transport that needs calls for that. word() is called for a line for which poll()
   * returned NULL, by a thread that is about to sleep: see fsccl_transport_word_t. One word may
   * serve all lines, since a thread that wakes polls again. */
  void (*signal)(void* channel, const fsccl_transport_line_t* line);
  const fsccl_transport_line_t* (*poll)(void* channel, int peer, uint32_t tick);
  void (*word)(void* channel, int peer, uint32_t tick, fsccl_transport_word_t* word);

  /* can_read() returns 1 if read() works between all ranks of the channel, and the same on all
   * ranks. read() copies `bytes` bytes from `address` of the peer's memory. */
  int (*can_read)(void* channel);
  fsccl_status_t (*read)(void* channel, int peer, uint64_t address, void* destination, size_t bytes,
                         char* error, size_t capacity);
  /* Returns the ring of `rank`. The ring has *ring_bytes bytes, and holds at least
   * FSCCL_TRANSPORT_SLOTS slots of at most *slot_bytes each. Both numbers are multiples of 64 and
   * the same for all ranks. Once all have opened the channel, the engine compares them and names a
   * rank that differs, so open() need not. If the transport mirrors slots, the ring may be longer
   * than FSCCL_TRANSPORT_SLOTS slots of *slot_bytes. Smaller slots then go round in the excess, so
   * that their bytes stay in caches. One part of it is for slots of up to a *turn*: 512 KiB, or 64
   * bytes for each rank if that is more. There is none if *slot_bytes is at most a turn. Another
   * part is for slots of up to a 16th of a turn, or of *slot_bytes if that is less. Each part holds
   * FSCCL_TRANSPORT_SLOTS slots. If there is no room for so many, it holds only smaller slots. */
  void* (*slots)(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes);
  /* Allocates the memory of the rings to which this rank writes. The engine calls it before it
   * first writes to them, perhaps more than once. */
  fsccl_status_t (*reserve)(void* channel, char* error, size_t capacity);

  /* A plug-in has both.
   *
   * put() gives bytes to another rank, `peer`. Once `peer` has polled the line of the next
   * signal(), it sees the bytes of `source` in its mirror of this rank's ring, from byte `at` on.
   * `source` must not change until that signal() has returned. The transport may copy the bytes to
   * this rank's own ring, and must not read them there once `peer` has them, because the ring may
   * change while `peer` still uses its mirror.
   *
   * rest() says that the engine stops polling for now: its operations are complete, or its thread
   * does something else. Earlier signals must arrive nevertheless, so the transport goes
   * on in the background as long as something is left to send. */
  void (*put)(void* channel, int peer, size_t at, const void* source, size_t bytes);
  void (*rest)(void* channel);
  /* A transport has both or neither, beside put(). expect() says that the engine wants certain
   * bytes at `destination`: the `bytes` bytes that `peer` will put under `tick`, from byte `at` of
   * its ring on. The transport may write them there instead of to the mirror, which saves the
   * engine a copy. It may do so until poll() has returned that tick or the board is written, and
   * not later. placed() is called after the tick has arrived and returns 1 if this was done. */
  void (*expect)(void* channel, int peer, uint32_t tick, size_t at, void* destination,
                 size_t bytes);
  int (*placed)(void* channel, int peer, uint32_t tick, size_t at, size_t bytes);

  /* Writes the board unless it is written already, and wakes all threads, on all ranks, that sleep
   * in the channel or in one of its pairs. fail() of a pair does the same. */
  void (*fail)(void* channel, const fsccl_transport_failure_t* failure);
  /* Returns the board, or NULL while nobody has written it. */
  const fsccl_transport_failure_t* (*failure)(void* channel);
  /* Returns 1 if `peer` has closed its channel, and else 0. Lines that it signalled before can
   * still be polled. */
  int (*left)(void* channel, int peer);
  /* Makes a channel of two ranks inside this one, through which rank `from` sends messages
   * (fsccl_send) to rank `to`. The two are its ranks 0 and 1. Each of them calls pair() once, in
   * the thread that issues its first message of this direction. pair() must not wait for the other
   * rank. If the other rank signals before this rank has called pair(), its signals must be there
   * afterwards. A pair shares the board of this channel and is closed before it. Only its rank 0
   * has slots; the transport chooses their size. */
  fsccl_status_t (*pair)(void* channel, int from, int to, void** pair, uint32_t* first_tick,
                         char* error, size_t capacity);

  /* 1: a device moves the bytes of put() or expect() and may hold on to their physical pages, as a
   * network card does with which memory is registered. A pool must then not change the pages behind
   * an address. 0: bytes are moved by their address, and not read afterwards. */
  int keeps_pages;

  /* A transport has both or neither. They are for one that can move bytes by several paths, none of
   * which is always the fastest. They are measured when a communicator is made. path() returns the
   * name of path `number`, or NULL if there is none. If the settings have chosen a path, there is
   * at most one. take_path() asks for this rank's later puts to `peer`, in any channel of the node,
   * to take that path. It returns 1 if they do from now on, and -1 if they never can. It returns 0
   * if the two ranks must first exchange what the path needs. They do this while both poll, after
   * something large was put; until then path 0 is taken, which always works. */
  const char* (*path)(void* channel, int number);
  int (*take_path)(void* channel, int peer, int number);

  /* Publishes the line to one peer only. For a transport that mirrors slots; if it is NULL, the
   * engine makes no plans that need it. When the peer has polled the line, it sees the bytes that
   * were put for it. Bytes that were put for other peers wait for the lines of these. */
  void (*signal_to)(void* channel, int peer, const fsccl_transport_line_t* line);

  /* Receives everything that has arrived, so that a failure which a rank reported before it ended
   * is on the board. The engine calls it when the job says that a rank died, from any thread, also
   * while another thread receives. NULL: the board has such failures without a call. */
  void (*hear_out)(void* channel);

  /* Announces two signals. The engine calls hold() directly before a signal() to all peers if it
   * knows that another signal() to all peers follows, with nothing but put() between them. The
   * transport may then keep the messages of the first signal and send them together with those of
   * the second. The bytes that were put for the first signal do not change until the second
   * signal() has returned. May be NULL; only a transport that mirrors slots needs it. */
  void (*hold)(void* channel);

  /* Says that this rank's next signal() will most likely be that of `tick`. A transport whose lines
   * are memory that peers read can fetch the line from the core that read it last, while the engine
   * does something else. The engine calls it at the end of a round. May be NULL. */
  void (*prepare)(void* channel, uint32_t tick);
} fsccl_transport_ops_t;

/* A plug-in exports this function, with this name and default visibility. It returns the plug-in's
 * table, which must live as long as the process, or NULL if the plug-in has none of this ABI (the
 * FSCCL_TRANSPORT_ABI of the library that asks). Any thread may call it. The library does not call
 * it again for a path once it has accepted a table of it, and never unloads the plug-in.
 *
 * A plug-in must be able to connect ranks of several hosts. It therefore needs join, connect,
 * leave, put and rest, and its node must not be NULL. It also needs available, open, close, signal,
 * poll, word, can_read, read, slots, reserve, fail, failure, left and pair. It has both or neither
 * of expect and placed, and of path and take_path. signal_to, hear_out, hold and prepare may be
 * NULL.
 *
 * `size` is the size of the table with which the plug-in was built; members that a shorter table
 * lacks count as NULL. `name` has 1 to 15 characters of a-z, 0-9, _ and -, and is not the name of a
 * built-in transport. It must be the same on all ranks. If other things must be equal, such as the
 * plug-in's version, the plug-in compares them through its endpoint addresses. If a plug-in cannot
 * be used, all ranks get FSCCL_ERR_NOT_AVAILABLE, with the reason and the rank.
 */
const fsccl_transport_ops_t* fsccl_transport_plugin(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* FSCCL_TRANSPORT_H */
