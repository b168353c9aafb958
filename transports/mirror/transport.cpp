#include "transports/mirror/table.h"

#include <algorithm>

#include "transports/mirror/channel.h"

namespace fsccl::mirror {
namespace {

Channel& as_channel(void* channel) { return *static_cast<Channel*>(channel); }

fsccl_status_t op_connect(void* node, const unsigned char* endpoints, size_t address_bytes,
                          char* error, size_t capacity) {
  return report(static_cast<Node*>(node)->connect(endpoints, address_bytes), error, capacity);
}

void op_leave(void* node) { delete static_cast<Node*>(node); }

fsccl_status_t keep(Result<std::unique_ptr<Channel>> made, void** channel, uint32_t* first_tick,
                    char* error, size_t capacity) {
  if (!made.ok()) return report(made.status(), error, capacity);
  *first_tick = 1;
  *channel = made.value().release();
  return FSCCL_OK;
}

fsccl_status_t op_open(const fsccl_transport_request_t* request, void** channel,
                       uint32_t* first_tick, char* error, size_t capacity) {
  Channel::Setup place;
  place.node = static_cast<Node*>(request->node);
  place.meeting = request->meeting;
  place.tag = request->tag;
  place.rank = request->rank;
  place.members.assign(request->members, request->members + request->ranks);
  place.slot_bytes = request->slot_bytes;
  if (request->known_as)
    place.known_as.assign(request->known_as, request->known_as + request->ranks);
  place.describe = request->describe;
  place.board = std::make_shared<Board>();
  return keep(Channel::open(std::move(place)), channel, first_tick, error, capacity);
}

fsccl_status_t op_pair(void* channel, int from, int to, void** pair, uint32_t* first_tick,
                       char* error, size_t capacity) {
  return keep(as_channel(channel).pair(from, to), pair, first_tick, error, capacity);
}

void op_close(void* channel) { delete &as_channel(channel); }
void op_signal(void* channel, const fsccl_transport_line_t* line) {
  as_channel(channel).signal(*line);
}
void op_signal_to(void* channel, int peer, const fsccl_transport_line_t* line) {
  as_channel(channel).signal_to(peer, *line);
}
const fsccl_transport_line_t* op_poll(void* channel, int peer, uint32_t tick) {
  return as_channel(channel).poll(peer, tick);
}
void op_word(void* channel, int, uint32_t, fsccl_transport_word_t* word) {
  as_channel(channel).word(word);
}
int op_can_read(void*) { return 0; }
fsccl_status_t op_read(void*, int, uint64_t, void*, size_t, char* error, size_t capacity) {
  return report(fail(FSCCL_ERR_INTERNAL, "peers' memory cannot be read between hosts"), error,
                capacity);
}
void* op_slots(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes) {
  return as_channel(channel).slots(rank, ring_bytes, slot_bytes);
}
fsccl_status_t op_reserve(void*, char*, size_t) { return FSCCL_OK; }
void op_put(void* channel, int peer, size_t at, const void* source, size_t bytes) {
  as_channel(channel).put(peer, at, source, bytes);
}
void op_expect(void* channel, int peer, uint32_t tick, size_t at, void* destination, size_t bytes) {
  as_channel(channel).expect(peer, tick, at, static_cast<std::byte*>(destination), bytes);
}
int op_placed(void* channel, int peer, uint32_t tick, size_t at, size_t bytes) {
  return as_channel(channel).placed(peer, tick, at, bytes) ? 1 : 0;
}
void op_rest(void* channel) { as_channel(channel).rest(); }
void op_fail(void* channel, const fsccl_transport_failure_t* failure) {
  as_channel(channel).fail(*failure);
}
const fsccl_transport_failure_t* op_failure(void* channel) { return as_channel(channel).failure(); }
const char* op_path(void* channel, int number) { return as_channel(channel).path(number); }
int op_take_path(void* channel, int peer, int number) {
  return as_channel(channel).take_path(peer, number);
}
void op_hear_out(void* channel) { as_channel(channel).hear_out(); }
void op_hold(void* channel) { as_channel(channel).hold(); }
int op_left(void* channel, int peer) { return as_channel(channel).left(peer) ? 1 : 0; }

}  // namespace

fsccl_status_t hand_over(Result<std::unique_ptr<Node>> made, void** node, unsigned char* endpoint,
                         size_t* address_bytes, char* error, size_t capacity) {
  if (!made.ok()) return report(made.status(), error, capacity);
  const std::vector<uint8_t>& mine = made.value()->endpoint();
  if (mine.size() > *address_bytes)
    return report(fail(FSCCL_ERR_LIMIT,
                       "the addresses of {} take {} bytes, {} are kept for them: use fewer devices",
                       made.value()->name(), mine.size(), *address_bytes),
                  error, capacity);
  std::copy(mine.begin(), mine.end(), endpoint);
  *address_bytes = mine.size();
  *node = made.value().release();
  return FSCCL_OK;
}

fsccl_transport_ops_t table(const char* name, Available available) {
  return {.size = sizeof(fsccl_transport_ops_t),
          .abi = FSCCL_TRANSPORT_ABI,
          .name = name,
          .available = available,
          .join = nullptr,
          .connect = op_connect,
          .leave = op_leave,
          .open = op_open,
          .close = op_close,
          .signal = op_signal,
          .poll = op_poll,
          .word = op_word,
          .can_read = op_can_read,
          .read = op_read,
          .slots = op_slots,
          .reserve = op_reserve,
          .put = op_put,
          .rest = op_rest,
          .expect = op_expect,
          .placed = op_placed,
          .fail = op_fail,
          .failure = op_failure,
          .left = op_left,
          .pair = op_pair,
          .path = op_path,
          .take_path = op_take_path,
          .signal_to = op_signal_to,
          .hear_out = op_hear_out,
          .hold = op_hold};
}

}  // namespace fsccl::mirror
