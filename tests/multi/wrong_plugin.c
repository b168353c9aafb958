/* The plug-in of the examples with one change, which the environment variable WRONG names:
 * something is wrong, or an optional function is missing. */
#include <fsccl/transport.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const fsccl_transport_ops_t* right_plugin(uint32_t abi); /* the plug-in of the example */

static int wrong(const char* what) {
  const char* const is = getenv("WRONG");
  return is && strcmp(is, what) == 0;
}

static int unavailable(char* why, size_t capacity) {
  return snprintf(why, capacity, "its card is unplugged"), 0;
}

static fsccl_status_t wrong_join(const fsccl_transport_job_t* job, void** node,
                                 unsigned char* endpoint, size_t* address_bytes, char* error,
                                 size_t capacity) {
  static char nowhere;
  const fsccl_status_t status =
      right_plugin(FSCCL_TRANSPORT_ABI)->join(job, node, endpoint, address_bytes, error, capacity);
  if (wrong("node")) *node = NULL;
  if (wrong("card")) *address_bytes = 1u << 20;
  if (!wrong("join")) return status;
  *node = &nowhere;
  return snprintf(error, capacity, "its cable is cut"), FSCCL_ERR_LINK;
}

static fsccl_status_t wrong_connect(void* node, const unsigned char* endpoints,
                                    size_t address_bytes, char* error, size_t capacity) {
  if (!wrong("connect"))
    return right_plugin(FSCCL_TRANSPORT_ABI)
        ->connect(node, endpoints, address_bytes, error, capacity);
  return snprintf(error, capacity, "its switch is off"), FSCCL_ERR_LINK;
}

/* Checks that the library calls leave() only for a node that join() has made. */
static void wrong_leave(void* node) {
  if (wrong("join") || wrong("node")) abort();
  right_plugin(FSCCL_TRANSPORT_ABI)->leave(node);
}

/* Checks that a plug-in without signal_to() gets each signal once, for all peers. */
static void signal_once(void* channel, const fsccl_transport_line_t* line) {
  static void* last_channel;
  static uint32_t last_tick;
  if (channel == last_channel && line->tick == last_tick) {
    puts("a tick is signalled twice");
    abort();
  }
  last_channel = channel;
  last_tick = line->tick;
  right_plugin(FSCCL_TRANSPORT_ABI)->signal(channel, line);
}

static fsccl_status_t wrong_open(const fsccl_transport_request_t* request, void** channel,
                                 uint32_t* first_tick, char* error, size_t capacity) {
  const fsccl_status_t status =
      right_plugin(FSCCL_TRANSPORT_ABI)->open(request, channel, first_tick, error, capacity);
  if (status != FSCCL_OK || !wrong("open")) return status;
  right_plugin(FSCCL_TRANSPORT_ABI)->close(*channel);
  strncpy(error, "its lamp is red, again and again and again", capacity);
  return FSCCL_IN_PROGRESS; /* no error, and no success either */
}

static void* wrong_slots(void* channel, int rank, size_t* ring_bytes, size_t* slot_bytes) {
  void* const slots =
      right_plugin(FSCCL_TRANSPORT_ABI)->slots(channel, rank, ring_bytes, slot_bytes);
  if (wrong("ring")) *ring_bytes += 640;
  if (wrong("large slots")) *slot_bytes = *ring_bytes;
  return slots;
}

__attribute__((visibility("default"))) const fsccl_transport_ops_t* fsccl_transport_plugin(
    uint32_t abi) {
  static fsccl_transport_ops_t ops;
  ops = *right_plugin(abi);
  ops.join = wrong_join;
  ops.connect = wrong_connect;
  ops.leave = wrong_leave;
  ops.open = wrong_open;
  ops.slots = wrong_slots;
  if (wrong("name")) ops.name = "other";
  if (wrong("machine")) ops.available = unavailable;
  if (wrong("table")) ops.put = NULL;
  if (wrong("signal_to")) {
    ops.signal_to = NULL;
    ops.signal = signal_once;
  }
  return wrong("version") ? NULL : &ops;
}
