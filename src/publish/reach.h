// How a subscriber reaches a publishing rank that listens at one of several addresses. A round
// makes one attempt at each address. Rounds follow each other until a rank answers as wanted, no
// address can give another answer, the rank seems to have ended, or the time has passed. An error
// says what each address answered last.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/socket.h"
#include "base/status.h"
#include "base/wait.h"
#include "bootstrap/credentials.h"
#include "bootstrap/framed_socket.h"

namespace fsccl::publish {

// A connection on which a rank has told the catalog of its publication.
struct Reached {
  FramedSocket channel;
  Bytes catalog;
  int32_t rank = -1;
};

class Reach {
 public:
  // There is at least one address. An answer is wrong if `check` returns an error. An error of
  // `broken` ends every attempt.
  using Check = std::function<Status(const Reached&)>;
  Reach(const Credentials& credentials, uint64_t number, std::vector<SocketAddress> addresses,
        Check check, BreakCheck broken);

  // Makes one attempt at each address. The code of an error is FSCCL_ERR_LINK only if an address
  // refuses, or another rank answers there, and no address is that of a process which answers later
  // or otherwise.
  Result<Reached> once(Deadline deadline);
  // Makes rounds until the deadline. Ends before if all answers are final, or after `most_refusals`
  // rounds in which an address refuses and at none a process may still answer.
  Result<Reached> until(Deadline deadline, int most_refusals);

 private:
  // An answer of an address. The later ones say more about the rank that is looked for.
  enum class Answer : uint8_t { none, silence, refusal, final, later };
  struct Place {
    SocketAddress address;
    int64_t attempt_ms;      // the time for what follows the connection
    Status answer;           // the last one; success: no attempt was made yet
    bool connected = false;  // by the last attempt
    Answer kind() const;
  };
  Result<Reached> attempt(Place& place, Deadline deadline) const;
  bool has(Answer kind) const;
  Status status() const;

  const Credentials& credentials_;
  const uint64_t number_;
  std::vector<Place> places_;
  const Check check_;
  const BreakCheck broken_;
};

}  // namespace fsccl::publish
