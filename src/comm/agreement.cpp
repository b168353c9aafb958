#include "comm/agreement.h"

#include <type_traits>

#include "base/clock.h"
#include "base/hash.h"
#include "wire/told.h"

namespace fsccl {
namespace {

constexpr int kFew = 8;  // so many ranks tell each other directly
constexpr uint64_t kLine = 64;

struct Terms {
  int64_t eager_bytes;
  uint32_t slot_lines, ring_lines;  // the sizes are in cache lines
  uint32_t plan;                    // a hash
  uint8_t single_copy;
  uint8_t unprepared;
  uint8_t padding[2];
};
static_assert(std::has_unique_object_representations_v<Terms>);

// The message of a barrier by dissemination.
struct Alike {
  uint64_t terms;  // a hash
  uint8_t yes;     // all ranks of which the sender knows have these terms and can begin
};

const char* text_of(uint8_t single_copy) {
  constexpr const char* kNames[] = {"auto", "on", "off"};
  return single_copy < std::size(kNames) ? kNames[single_copy] : "unknown";
}

std::string text_of(int64_t bytes) { return bytes == kConfigAuto ? "auto" : std::to_string(bytes); }

Terms terms_of(const Startup& startup, const Config& mine, bool prepared) {
  Terms terms{};
  terms.eager_bytes = mine.eager_bytes;
  size_t ring_bytes = 0, slot_bytes = 0;
  startup.channel->slots(startup.rank, &ring_bytes, &slot_bytes);
  terms.slot_lines = static_cast<uint32_t>(slot_bytes / kLine);
  terms.ring_lines = static_cast<uint32_t>(ring_bytes / kLine);
  terms.plan = static_cast<uint32_t>(hash_of(mine.plan));
  terms.single_copy = static_cast<uint8_t>(mine.single_copy);
  terms.unprepared = prepared ? 0 : 1;
  return terms;
}

Status concerning(const Startup& startup, Status problem, int peer) {
  return std::move(problem).with_peer(startup.known_as(startup.rank), startup.known_as(peer));
}

template <class Told>
Result<Told> told_by(const Startup& startup, int peer, uint32_t tick) {
  if (const unsigned char* line = startup.await(peer, tick)) {
    Told told;
    std::memcpy(&told, line, sizeof told);
    return told;
  }
  if (const fsccl_transport_failure_t* failure = startup.channel->failure())
    return fail(told_code(failure->code), "{}", told_text({failure->text, sizeof failure->text}))
        .with_peer(startup.known_as(startup.rank),
                   failure->peer >= 0 ? failure->peer : startup.known_as(peer));
  if (now_ns() > startup.deadline_ns)
    return concerning(
        startup, fail(FSCCL_ERR_TIMEOUT, "rank {} did not come in time", startup.known_as(peer)),
        peer);
  if (startup.why_cancelled) return startup.why_cancelled();
  return concerning(startup,
                    fail(FSCCL_ERR_PEER_DEAD, "a rank was lost while rank {} was waited for",
                         startup.known_as(peer)),
                    peer);
}

// Returns true if all ranks have the same terms and can begin. This is a barrier by dissemination,
// so each rank sends only as many messages as the logarithm of the number of ranks. The answer is
// the same on all ranks, because each of them knows of all others in the end.
Result<bool> all_alike(const Startup& startup, const Terms& terms, uint32_t tick) {
  Alike mine{hash_of({reinterpret_cast<const char*>(&terms), sizeof terms}),
             terms.unprepared ? uint8_t{0} : uint8_t{1}};
  for (int distance = 1; distance < startup.ranks; distance *= 2) {
    startup.signal_to((startup.rank + distance) % startup.ranks, tick, mine);
    const int before = (startup.rank - distance + startup.ranks) % startup.ranks;
    FSCCL_ASSIGN(const Alike theirs, told_by<Alike>(startup, before, tick));
    mine.yes = mine.yes && theirs.yes && theirs.terms == mine.terms;
  }
  return mine.yes != 0;
}

}  // namespace

Status check_slots(const Channel& channel) {
  size_t ring_bytes = 0, slot_bytes = 0;
  channel.slots(0, &ring_bytes, &slot_bytes);
  const bool fits = slot_bytes > 0 && slot_bytes <= ring_bytes / FSCCL_TRANSPORT_SLOTS;
  if (fits && slot_bytes % kLine == 0 && ring_bytes % kLine == 0) return success();
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "the transport {} has rings of {} bytes with slots of {}: both must be multiples of "
              "{}, and a ring holds {} slots at least",
              channel.traits().transport, ring_bytes, slot_bytes, kLine, FSCCL_TRANSPORT_SLOTS);
}

Status agree_to_begin(const Startup& startup, const Config& mine, Status prepared, uint32_t* tick) {
  const Terms terms = terms_of(startup, mine, prepared.ok());
  if (startup.ranks > kFew && startup.channel->traits().signals_one) {
    FSCCL_ASSIGN(const bool alike, all_alike(startup, terms, (*tick)++));
    if (alike) return success();
  }
  const uint32_t at = (*tick)++;
  startup.signal(at, terms);
  Status status = std::move(prepared);
  const auto differ = [&](const char* name, int peer, const std::string& own,
                          const std::string& theirs) {
    status = concerning(
        startup,
        fail(FSCCL_ERR_MISMATCH, "rank {} has {} {}, rank {} has {}: set it alike on all ranks",
             startup.known_as(peer), name, theirs, startup.known_as(startup.rank), own),
        peer);
  };
  // This goes on after a difference, because no rank may leave before all ranks have told their
  // terms.
  for (int peer = 0; peer < startup.ranks; peer++) {
    if (peer == startup.rank) continue;
    FSCCL_ASSIGN(const Terms theirs, told_by<Terms>(startup, peer, at));
    if (!status.ok()) continue;
    if (theirs.unprepared)
      status = concerning(
          startup,
          fail(FSCCL_ERR_OUT_OF_MEMORY, "rank {} could not begin: its own error says why",
               startup.known_as(peer)),
          peer);
    if (theirs.eager_bytes != terms.eager_bytes)
      differ("FSCCL_EAGER_BYTES", peer, text_of(terms.eager_bytes), text_of(theirs.eager_bytes));
    if (theirs.slot_lines != terms.slot_lines)
      differ("FSCCL_SLOT_BYTES", peer, std::to_string(kLine * terms.slot_lines),
             std::to_string(kLine * theirs.slot_lines));
    if (theirs.ring_lines != terms.ring_lines)
      differ("rings of another transport or version, in bytes:", peer,
             std::to_string(kLine * terms.ring_lines), std::to_string(kLine * theirs.ring_lines));
    if (theirs.plan != terms.plan) differ("FSCCL_PLAN", peer, "another one", "one");
    if (theirs.single_copy != terms.single_copy)
      differ("FSCCL_SINGLE_COPY", peer, text_of(terms.single_copy), text_of(theirs.single_copy));
  }
  return status;
}

}  // namespace fsccl
