#include "publish/reach.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fsccl::publish {

namespace {

// The time for one address in the first round: connection, handshake and catalog. It doubles with
// each round, because a rank may be slow and its catalog long.
constexpr int64_t kFirstAttemptMs = 2000;
constexpr int64_t kLongestAttemptMs = int64_t{1} << 40;
constexpr int kRoundsInSilence = 10;  // after so many, a warning says why the call still waits
constexpr int64_t kFirstRestNs = 10'000'000, kLongestRestNs = 200'000'000;

// Returns how much an answer says about the rank that is looked for. Several hosts may have one
// address, such as that of a bridge of containers. So an address at which somebody else answers, or
// nobody, says nothing against a rank that is only slow or full at another of its addresses.
int weight(const Status& answer) {
  switch (answer.code()) {
    case FSCCL_OK:
      return 0;
    case FSCCL_ERR_LINK:
      return 1;
    case FSCCL_ERR_TIMEOUT:
    case FSCCL_ERR_LIMIT:
      return 3;
    default:
      return 2;  // a later attempt has the same answer
  }
}

}  // namespace

Reach::Reach(const Credentials& credentials, uint64_t number, std::vector<SocketAddress> addresses,
             Check check, BreakCheck broken)
    : credentials_(credentials),
      number_(number),
      check_(std::move(check)),
      broken_(std::move(broken)),
      attempt_ms_(kFirstAttemptMs) {
  for (SocketAddress& address : addresses) places_.push_back({address, success()});
}

Result<Reached> Reach::attempt(const SocketAddress& address, Deadline deadline) const {
  Reached made;
  Status versions;
  FSCCL_ASSIGN(Fd connected, connect_to(address, deadline, broken_));
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
    const Deadline end =
        Deadline::at(std::min(deadline.at_ns(), Deadline::in_ms(attempt_ms_).at_ns()));
    Result<Reached> made = attempt(place.address, end);
    if (made.ok()) return made;
    if (broken_) FSCCL_TRY(broken_());
    place.answer = made.take_status();
  }
  attempt_ms_ = std::min(2 * attempt_ms_, kLongestAttemptMs);
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
    refusals = why.code() == FSCCL_ERR_LINK ? refusals + 1 : 0;
    return refusals >= most_refusals || weight(why) == 2;
  };
  FSCCL_TRY(
      wait_unless(broken_, decided, deadline, Naps(0, kFirstRestNs, kLongestRestNs)).take_status());
  if (reached) return std::move(*reached);
  return why;
}

Status Reach::status() const {
  const auto& most = *std::max_element(
      places_.begin(), places_.end(),
      [](const Place& a, const Place& b) { return weight(a.answer) < weight(b.answer); });
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
