#include "publish/reach.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fsccl::publish {

namespace {

// The time for the connection to one address, and at first for the handshake and the catalog. The
// latter doubles where a process has accepted the connection: it may be slow, and its catalog long.
// An address that does not answer at all takes no time from the others.
constexpr int64_t kFirstAttemptMs = 2000;
constexpr int64_t kLongestAttemptMs = int64_t{1} << 40;
constexpr int kRoundsInSilence = 10;  // after so many, a warning says why the call still waits
constexpr int64_t kFirstRestNs = 10'000'000, kLongestRestNs = 200'000'000;

Deadline within(int64_t ms, Deadline deadline) {
  return Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(ms).at_ns()));
}

}  // namespace

// Several hosts may have one address, such as that of a bridge of containers. So an address at
// which somebody else answers, or nobody, says nothing against a rank that is only slow or full at
// another of its addresses. A limit is that of a rank which has answered. Before, it is a limit of
// this process, such as that of open files, which the caller is told at once.
Reach::Answer Reach::Place::kind() const {
  switch (answer.code()) {
    case FSCCL_OK:
      return Answer::none;
    case FSCCL_ERR_LINK:
      return Answer::refusal;
    case FSCCL_ERR_TIMEOUT:
      return connected ? Answer::later : Answer::silence;
    case FSCCL_ERR_LIMIT:
      return connected ? Answer::later : Answer::final;
    default:
      return Answer::final;
  }
}

Reach::Reach(const Credentials& credentials, uint64_t number, std::vector<SocketAddress> addresses,
             Check check, BreakCheck broken)
    : credentials_(credentials),
      number_(number),
      check_(std::move(check)),
      broken_(std::move(broken)) {
  for (SocketAddress& address : addresses) places_.push_back({address, kFirstAttemptMs, success()});
}

Result<Reached> Reach::attempt(Place& place, Deadline until) const {
  Reached made;
  Status versions;
  place.connected = false;
  FSCCL_ASSIGN(Fd connected, connect_to(place.address, within(kFirstAttemptMs, until), broken_));
  place.connected = true;
  const Deadline deadline = within(place.attempt_ms, until);
  FSCCL_ASSIGN(made.channel,
               introduce_as(std::move(connected), credentials_, Purpose::kSubscribe, number_,
                            kSubscriberRank, 0, deadline, &versions, broken_, &made.rank));
  FSCCL_TRY(std::move(versions));
  FSCCL_TRY(made.channel.send(FrameType::kSubscribe, {}, deadline, broken_));
  made.channel.allow(kMaxTableBytes);
  FSCCL_ASSIGN(made.catalog, made.channel.expect(FrameType::kCatalog, deadline, nullptr, broken_));
  made.channel.allow(kMaxRequestBytes);
  FSCCL_TRY(check_(made));
  return made;
}

Result<Reached> Reach::once(Deadline deadline) {
  for (Place& place : places_) {
    // Without time for an attempt, what the address answered before says more.
    if (!place.answer.ok() && deadline.passed()) break;
    Result<Reached> made = attempt(place, deadline);
    if (made.ok()) return made;
    if (broken_) FSCCL_TRY(broken_());
    // Nor does an attempt that the end of the time cut short say more.
    const bool cut = made.status().code() == FSCCL_ERR_TIMEOUT && deadline.passed();
    if (place.answer.ok() || !cut) place.answer = made.take_status();
    if (place.connected) place.attempt_ms = std::min(2 * place.attempt_ms, kLongestAttemptMs);
  }
  return status();
}

Result<Reached> Reach::until(Deadline deadline, int most_refusals) {
  std::optional<Reached> reached;
  Status why;
  int rounds = 0, refusals = 0;
  const auto decided = [&] {
    Result<Reached> made = once(deadline);
    if (made.ok()) {
      reached = made.take();
      return true;
    }
    why = made.take_status();
    if (++rounds == kRoundsInSilence)
      FSCCL_LOG(kWarn, "no publication was reached yet, attempts go on: {}", why.text());
    refusals = has(Answer::refusal) && !has(Answer::later) ? refusals + 1 : 0;
    return refusals >= most_refusals ||
           !(has(Answer::silence) || has(Answer::refusal) || has(Answer::later));
  };
  FSCCL_TRY(
      wait_unless(broken_, decided, deadline, Naps(0, kFirstRestNs, kLongestRestNs)).take_status());
  if (reached) return std::move(*reached);
  return why;
}

bool Reach::has(Answer kind) const {
  return std::any_of(places_.begin(), places_.end(),
                     [kind](const Place& place) { return place.kind() == kind; });
}

Status Reach::status() const {
  const auto& most =
      *std::max_element(places_.begin(), places_.end(),
                        [](const Place& a, const Place& b) { return a.kind() < b.kind(); });
  std::string text;
  for (const Place& place : places_) {
    const std::string where = describe(place.address);
    if (!text.empty()) text += "; ";
    if (!place.answer.text().starts_with(where)) text += where + ": ";
    text += place.answer.text();
  }
  return fail(most.answer.code(), "{}", text);
}

}  // namespace fsccl::publish
