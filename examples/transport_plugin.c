/*
 * A complete transport as a plug-in: a shared library that connects the ranks of one machine. To
 * use it, set on all ranks
 *
 *     FSCCL_TRANSPORT=plugin FSCCL_TRANSPORT_PLUGIN=/path/to/libtransport_plugin.so
 *
 * Each rank has a file without a name (memfd), which its peers map, too. In the file every peer has
 * lines and a ring of its own, for what it signals and puts for this rank. So a rank writes only to
 * its peers' files and reads only its own, as it would over a network that can write to remote
 * memory: what put() and signal_to() do here by memcpy would be a message there.
 *
 *     | page: failure board | box of the channel | box of the pair 0 to us
 *     | box of the pair us to 0 | pair 1 to us | ...
 *
 * A pair is a channel of two ranks inside the channel, with smaller boxes. A page takes memory only
 * once it has been written, so unused pairs take none. Ranks may be processes or threads of one.
 *
 * Nothing that is read from a peer's memory is used as an index, a length or an address.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memfd_create */
#endif
#include <errno.h>
#include <fcntl.h>
#include <fsccl/transport.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TRANSPORT_NAME "memfd"
enum { PAGE = 4096, SLOT_BYTES = 64 << 10, PAIR_SLOT_BYTES = 16 << 10 };

/* The head of a file. Its owner writes the tag before any peer has the file. Only the board of rank
 * 0 is used. */
struct head {
  uint64_t tag;         /* identifies the channel */
  uint32_t board_state; /* 0 if empty, 1 while it is being written, 2 once written */
  fsccl_transport_failure_t board;
};

/* The head of a box. Behind it come a page of lines for each rank, and then a ring for each rank.
 * That rank writes them for the owner of the box. */
struct box {
  uint32_t left; /* 1 once its owner has closed the channel */
  /* The owner sleeps on `arrivals` of the channel's box, even while it waits in a pair. Each
   * arrival for the owner increments this number. */
  uint32_t arrivals;
  uint32_t sleepers;
};

struct channel {
  int rank, ranks;
  size_t ring_bytes;
  struct head* board;
  struct box** boxes; /* one for each rank; peers write to ours, and we write to theirs */
  /* These are a pair's: the channel around it, and the numbers of its two ranks in that channel. */
  const struct channel* around;
  int numbers[2];
  /* The mapped files of all ranks, each of file_bytes bytes. NULL for a pair. */
  char** files;
  size_t file_bytes;
};

static fsccl_status_t problem(fsccl_status_t code, char* error, size_t capacity, const char* what) {
  snprintf(error, capacity, "%s: %s", what, strerror(errno));
  return code;
}

/* ---- the places of boxes, lines and rings */

static size_t whole_pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }
static size_t ring_of(size_t slot_bytes) { return FSCCL_TRANSPORT_SLOTS * slot_bytes; }
static size_t box_bytes(int ranks, size_t ring_bytes) {
  return PAGE + (size_t)ranks * (PAGE + ring_bytes);
}
static size_t pair_box_bytes(void) { return box_bytes(2, ring_of(PAIR_SLOT_BYTES)); }

static size_t file_bytes(int ranks, size_t ring_bytes) {
  return PAGE + box_bytes(ranks, ring_bytes) + 2 * (size_t)ranks * pair_box_bytes();
}

/* Returns the lines that `writer` signals in the box of `owner`. Their place does not depend on the
 * size of rings. */
static fsccl_transport_line_t* lines(const struct channel* c, int owner, int writer) {
  return (fsccl_transport_line_t*)((char*)c->boxes[owner] + (1 + (size_t)writer) * PAGE);
}
static char* ring(const struct channel* c, int owner, int writer) {
  return (char*)c->boxes[owner] + (1 + (size_t)c->ranks) * PAGE + (size_t)writer * c->ring_bytes;
}

/* ---- a job: its ranks must be on one machine */

static int available(char* why, size_t capacity) {
  const int fd = memfd_create(TRANSPORT_NAME, MFD_CLOEXEC);
  if (fd < 0) return problem(FSCCL_ERR_SYSTEM, why, capacity, "memfd_create"), 0;
  close(fd);
  return 1;
}

static fsccl_status_t join(const fsccl_transport_job_t* job, void** node, unsigned char* address,
                           size_t* address_bytes, char* error, size_t capacity) {
  static int nothing_to_share; /* a node is not needed, but must not be NULL */
  int rank;
  (void)address;
  for (rank = 0; rank < job->ranks; rank++) {
    if (job->hosts[rank] == job->hosts[job->rank]) continue;
    snprintf(error, capacity,
             "ranks %d and %d are on different hosts, and " TRANSPORT_NAME " joins those of one",
             job->rank, rank);
    return FSCCL_ERR_NOT_AVAILABLE;
  }
  if (job->checksum) {
    snprintf(error, capacity, TRANSPORT_NAME " has no checksums: unset FSCCL_CHECKSUM");
    return FSCCL_ERR_NOT_AVAILABLE;
  }
  *node = &nothing_to_share;
  *address_bytes = 0; /* a transport over a network would give its address */
  return FSCCL_OK;
}

static fsccl_status_t connect_all(void* node, const unsigned char* addresses, size_t address_bytes,
                                  char* error, size_t capacity) {
  (void)node, (void)addresses, (void)address_bytes, (void)error, (void)capacity;
  return FSCCL_OK;
}

static void leave(void* node) { (void)node; }

/* ---- opening and closing a channel */

static char* map(int fd, size_t bytes) {
  void* const base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return base == MAP_FAILED ? NULL : base;
}

/* Makes and maps this rank's file, and offers it to the other ranks once its head is written. */
static fsccl_status_t make_file(struct channel* c, const fsccl_transport_request_t* request,
                                char* error, size_t capacity) {
  const int fd = memfd_create(TRANSPORT_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  fsccl_status_t status = FSCCL_OK;
  struct head* head;
  if (fd < 0) return problem(FSCCL_ERR_SYSTEM, error, capacity, "memfd_create");
  /* The seal ensures that the file does not shrink while a peer has it mapped. */
  if (ftruncate(fd, (off_t)c->file_bytes) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL) ||
      !(c->files[c->rank] = map(fd, c->file_bytes))) {
    status = problem(FSCCL_ERR_SYSTEM, error, capacity, "cannot make the memory of a channel");
  } else {
    head = (struct head*)c->files[c->rank];
    head->tag = request->tag;
    if (c->ranks > 1 && request->publish_fd(request->context, fd, error, capacity))
      status = FSCCL_ERR_LINK;
  }
  close(fd);
  return status;
}

/* Maps the file of a peer. fetch_fd() waits for the peer, and fails if the wait has to end. The
 * file may have slots of another size: once all ranks have opened the channel, the engine compares
 * what slots() returns on each, and reports a difference on all. So here the file only has to have
 * room for lines. */
static fsccl_status_t get_file(struct channel* c, const fsccl_transport_request_t* request,
                               int peer, char* error, size_t capacity) {
  struct head head;
  struct stat file;
  fsccl_status_t status = FSCCL_OK;
  const int fd = request->fetch_fd(request->context, peer, error, capacity);
  *request->concerns = peer;
  if (fd < 0) return FSCCL_ERR_LINK;
  if (fstat(fd, &file) || file.st_size < (2 + c->ranks) * PAGE ||
      !(fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) ||
      pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head) {
    snprintf(error, capacity, "what rank %d offers is no file of " TRANSPORT_NAME, peer);
    status = FSCCL_ERR_PROTOCOL;
  } else if (head.tag != request->tag) {
    snprintf(error, capacity, "rank %d makes a communicator of other ranks", peer);
    status = FSCCL_ERR_MISMATCH;
  } else if (!(c->files[peer] = map(fd, c->file_bytes))) {
    status = problem(FSCCL_ERR_SYSTEM, error, capacity, "cannot map the memory of a channel");
  }
  close(fd);
  return status;
}

static void free_channel(struct channel* c) {
  int rank;
  for (rank = 0; c->files && rank < c->ranks; rank++)
    if (c->files[rank]) munmap(c->files[rank], c->file_bytes);
  free(c->files);
  free(c->boxes);
  free(c);
}

static struct channel* new_channel(int rank, int ranks, size_t slot_bytes) {
  struct channel* const c = calloc(1, sizeof *c);
  if (!c) return NULL;
  c->rank = rank;
  c->ranks = ranks;
  c->ring_bytes = ring_of(slot_bytes);
  c->boxes = calloc((size_t)ranks, sizeof *c->boxes);
  if (c->boxes) return c;
  free_channel(c);
  return NULL;
}

static fsccl_status_t open_channel(const fsccl_transport_request_t* request, void** channel,
                                   uint32_t* first_tick, char* error, size_t capacity) {
  /* A slot must have room for a line of every rank. */
  const size_t least = (size_t)request->ranks * sizeof(fsccl_transport_line_t);
  const size_t slot = request->slot_bytes ? request->slot_bytes : (size_t)SLOT_BYTES;
  struct channel* const c =
      new_channel(request->rank, request->ranks, whole_pages(slot > least ? slot : least));
  fsccl_status_t status = FSCCL_ERR_OUT_OF_MEMORY;
  int rank;
  snprintf(error, capacity, "no memory for a channel");
  if (!c) return status;
  c->file_bytes = file_bytes(c->ranks, c->ring_bytes);
  c->files = calloc((size_t)c->ranks, sizeof *c->files);
  if (c->files) status = make_file(c, request, error, capacity);
  for (rank = 0; rank < c->ranks && status == FSCCL_OK; rank++) {
    if (rank != c->rank) status = get_file(c, request, rank, error, capacity);
    if (c->files[rank]) c->boxes[rank] = (struct box*)(c->files[rank] + PAGE);
  }
  if (status != FSCCL_OK) return free_channel(c), status;
  c->board = (struct head*)c->files[0];
  *channel = c;
  *first_tick = 1; /* any tick but 0, which fresh lines have */
  return FSCCL_OK;
}

/* Opens a pair. Its boxes have their place in the files of its two ranks from the start. */
static fsccl_status_t open_pair(void* channel, int from, int to, void** pair, uint32_t* first_tick,
                                char* error, size_t capacity) {
  const struct channel* const c = channel;
  struct channel* const p = new_channel(c->rank == from ? 0 : 1, 2, PAIR_SLOT_BYTES);
  const size_t pairs = PAGE + box_bytes(c->ranks, c->ring_bytes);
  if (!p) return snprintf(error, capacity, "no memory for a channel"), FSCCL_ERR_OUT_OF_MEMORY;
  p->board = c->board;
  p->around = c;
  p->numbers[0] = from;
  p->numbers[1] = to;
  p->boxes[0] = (struct box*)(c->files[from] + pairs + (2 * (size_t)to + 1) * pair_box_bytes());
  p->boxes[1] = (struct box*)(c->files[to] + pairs + 2 * (size_t)from * pair_box_bytes());
  *pair = p;
  *first_tick = 1;
  return FSCCL_OK;
}

/* ---- signals */

/* Returns the box on whose word a rank sleeps. */
static struct box* box_of_sleeper(const struct channel* c, int rank) {
  return c->around ? c->around->boxes[c->numbers[rank]] : c->boxes[rank];
}

/* Wakes a rank after each change. A sleeper counts itself and then reads the word; the waker
 * changes the word and then looks for sleepers. These accesses have one order for all threads
 * (SEQ_CST), so either the sleeper sees the change or the waker sees the sleeper. */
static void wake(const struct channel* c, int rank) {
  struct box* const box = box_of_sleeper(c, rank);
  __atomic_add_fetch(&box->arrivals, 1, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&box->sleepers, __ATOMIC_SEQ_CST))
    syscall(SYS_futex, &box->arrivals, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void wake_all(const struct channel* c) {
  int rank;
  for (rank = 0; rank < c->ranks; rank++) wake(c, rank);
}

static void signal_to(void* channel, int peer, const fsccl_transport_line_t* line) {
  const struct channel* const c = channel;
  fsccl_transport_line_t* const there =
      &lines(c, peer, c->rank)[line->tick % FSCCL_TRANSPORT_TICKS];
  there->processor = -1;
  memcpy(there->fingerprint, line->fingerprint, sizeof line->fingerprint);
  memcpy(there->payload, line->payload, sizeof line->payload);
  /* The tick is stored last, so a rank that sees it also sees the line and all bytes put before. */
  __atomic_store_n(&there->tick, line->tick, __ATOMIC_RELEASE);
  wake(c, peer);
}

static void signal_all(void* channel, const fsccl_transport_line_t* line) {
  const struct channel* const c = channel;
  int peer;
  for (peer = 0; peer < c->ranks; peer++)
    if (peer != c->rank) signal_to(channel, peer, line);
}

static const fsccl_transport_line_t* poll_line(void* channel, int peer, uint32_t tick) {
  const struct channel* const c = channel;
  const fsccl_transport_line_t* const line = &lines(c, c->rank, peer)[tick % FSCCL_TRANSPORT_TICKS];
  return __atomic_load_n(&line->tick, __ATOMIC_ACQUIRE) == tick ? line : NULL;
}

static void word(void* channel, int peer, uint32_t tick, fsccl_transport_word_t* word) {
  const struct channel* const c = channel;
  struct box* const box = box_of_sleeper(c, c->rank);
  (void)peer, (void)tick; /* one word serves for everything that comes */
  word->word = &box->arrivals;
  word->value = __atomic_load_n(&box->arrivals, __ATOMIC_SEQ_CST);
  word->sleepers = &box->sleepers;
  word->processor = -1;
}

/* ---- bytes */

static void* slots(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes) {
  const struct channel* const c = channel;
  *ring_bytes = c->ring_bytes;
  *slot_bytes = c->ring_bytes / FSCCL_TRANSPORT_SLOTS;
  return ring(c, c->rank, rank);
}

static void put(void* channel, int peer, size_t at, const void* source, size_t bytes) {
  const struct channel* const c = channel;
  memcpy(ring(c, peer, c->rank) + at, source, bytes);
}

/* Pages take memory when they are first written. A transport whose memory can run out takes it
 * here, so that the call fails and not the program. */
static fsccl_status_t reserve(void* channel, char* error, size_t capacity) {
  (void)channel, (void)error, (void)capacity;
  return FSCCL_OK;
}

/* Nothing is ever under way that would need to be moved on, so this does nothing. */
static void rest(void* channel) { (void)channel; }
static int can_read(void* channel) { return (void)channel, 0; }
static fsccl_status_t read_peer(void* channel, int peer, uint64_t address, void* destination,
                                size_t bytes, char* error, size_t capacity) {
  (void)channel, (void)peer, (void)address, (void)destination, (void)bytes;
  return snprintf(error, capacity, TRANSPORT_NAME " reads no private memory"), FSCCL_ERR_INTERNAL;
}

/* ---- ends */

static void close_channel(void* channel) {
  struct channel* const c = channel;
  __atomic_store_n(&c->boxes[c->rank]->left, 1, __ATOMIC_RELEASE); /* after all lines */
  wake_all(c);
  free_channel(c);
}

static int left(void* channel, int peer) {
  const struct channel* const c = channel;
  return __atomic_load_n(&c->boxes[peer]->left, __ATOMIC_ACQUIRE) == 1;
}

/* The first rank that reports a failure writes the board, and wakes the ranks that sleep in the
 * channel or in a pair. */
static void fail(void* channel, const fsccl_transport_failure_t* failure) {
  const struct channel* const c = channel;
  uint32_t empty = 0;
  if (!__atomic_compare_exchange_n(&c->board->board_state, &empty, 1, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_RELAXED))
    return;
  c->board->board = *failure;
  __atomic_store_n(&c->board->board_state, 2, __ATOMIC_RELEASE);
  wake_all(c->around ? c->around : c);
}

static const fsccl_transport_failure_t* failure(void* channel) {
  const struct channel* const c = channel;
  return __atomic_load_n(&c->board->board_state, __ATOMIC_ACQUIRE) == 2 ? &c->board->board : NULL;
}

/* ---- the table, and the one function that the library exports */

__attribute__((visibility("default"))) const fsccl_transport_ops_t* fsccl_transport_plugin(
    uint32_t abi) {
  static const fsccl_transport_ops_t ops = {
      .size = sizeof(fsccl_transport_ops_t),
      .abi = FSCCL_TRANSPORT_ABI,
      .name = TRANSPORT_NAME,
      .available = available,
      .join = join,
      .connect = connect_all,
      .leave = leave,
      .open = open_channel,
      .close = close_channel,
      .signal = signal_all,
      .poll = poll_line,
      .word = word,
      .can_read = can_read,
      .read = read_peer,
      .slots = slots,
      .reserve = reserve,
      .put = put,
      .rest = rest,
      .fail = fail,
      .failure = failure,
      .left = left,
      .pair = open_pair,
      .signal_to = signal_to,
  };
  return abi == FSCCL_TRANSPORT_ABI ? &ops : NULL;
}
