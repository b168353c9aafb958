#include "engine/agreement.h"

#include "base/clock.h"
#include "base/hash.h"

namespace fsccl {
namespace {

struct Terms {
  int64_t eager_bytes;
  uint64_t slot_bytes;
  uint32_t plan;  // a hash
  uint8_t single_copy;
  uint8_t unprepared;
};

const char* text_of(uint8_t single_copy) {
  constexpr const char* kNames[] = {"auto", "on", "off"};
  return single_copy < std::size(kNames) ? kNames[single_copy] : "unknown";
}

std::string text_of(int64_t bytes) { return bytes == kConfigAuto ? "auto" : std::to_string(bytes); }

}  // namespace

Status agree_to_begin(const Meeting& meeting, const Config& mine, Status prepared, uint32_t* tick) {
  Terms terms{};
  terms.eager_bytes = mine.eager_bytes;
  size_t ring_bytes = 0, slot_bytes = 0;
  meeting.transport->slots(meeting.channel, meeting.rank, &ring_bytes, &slot_bytes);
  terms.slot_bytes = slot_bytes;
  terms.plan = static_cast<uint32_t>(hash_of(mine.plan));
  terms.single_copy = static_cast<uint8_t>(mine.single_copy);
  terms.unprepared = prepared.ok() ? 0 : 1;
  const uint32_t at = (*tick)++;
  meeting.signal(at, terms);
  Status status = std::move(prepared);
  const auto concerning = [&](Status problem, int peer) {
    return std::move(problem).with_peer(meeting.shown(meeting.rank), meeting.shown(peer));
  };
  const auto differ = [&](const char* name, int peer, const std::string& own, const std::string& theirs) {
    status = concerning(fail(FSCCL_ERR_MISMATCH, "rank {} has {} {}, rank {} has {}: set it alike on all ranks",
                             meeting.shown(peer), name, theirs, meeting.shown(meeting.rank), own),
                        peer);
  };
  // To the end also after a difference: nobody leaves before all have told.
  for (int peer = 0; peer < meeting.ranks; peer++) {
    if (peer == meeting.rank) continue;
    const unsigned char* line = meeting.await(peer, at);
    if (const fsccl_transport_failure_t* failure = line ? nullptr : meeting.transport->failure(meeting.channel))
      return concerning(fail(static_cast<fsccl_status_t>(failure->code), "{}", failure->text), peer);
    if (!line && now_ns() > meeting.deadline_ns)
      return concerning(fail(FSCCL_ERR_TIMEOUT, "rank {} did not come in time", meeting.shown(peer)), peer);
    if (!line)
      return concerning(fail(FSCCL_ERR_PEER_DEAD, "a rank was lost while rank {} was waited for", meeting.shown(peer)), peer);
    Terms theirs;
    std::memcpy(&theirs, line, sizeof theirs);
    if (!status.ok()) continue;
    if (theirs.unprepared)
      status =
          concerning(fail(FSCCL_ERR_OUT_OF_MEMORY, "rank {} could not begin: its own error says why", meeting.shown(peer)), peer);
    if (theirs.eager_bytes != terms.eager_bytes)
      differ("FSCCL_EAGER_BYTES", peer, text_of(terms.eager_bytes), text_of(theirs.eager_bytes));
    if (theirs.slot_bytes != terms.slot_bytes)
      differ("FSCCL_SLOT_BYTES", peer, std::to_string(terms.slot_bytes), std::to_string(theirs.slot_bytes));
    if (theirs.plan != terms.plan) differ("FSCCL_PLAN", peer, "another one", "one");
    if (theirs.single_copy != terms.single_copy)
      differ("FSCCL_SINGLE_COPY", peer, text_of(terms.single_copy), text_of(theirs.single_copy));
  }
  return status;
}

}  // namespace fsccl
