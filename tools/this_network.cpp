#include "this_network.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <ctime>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace {

constexpr size_t kPiece = size_t{512} << 10, kPieces = 128;
constexpr int kTransfers = 3;

double processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

// Moves all pieces by `move(fd, place, bytes)`. Returns the processor time of this thread, or 0 if
// the connection has ended.
template <class Move>
double moved_ns(int fd, const Move& move) {
  std::vector<char> piece(kPiece, 1);
  const double begin = processor_ns();
  for (size_t i = 0; i < kPieces; i++)
    for (size_t done = 0; done < kPiece;) {
      const ssize_t now = move(fd, piece.data() + done, kPiece - done);
      if (now <= 0) return 0;
      done += static_cast<size_t>(now);
    }
  return processor_ns() - begin;
}

struct Connection {
  fsccl::Fd caller, called;
};
std::optional<Connection> connected() {
  const fsccl::Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  Connection made{fsccl::Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), fsccl::Fd()};
  if (bind(listener.get(), any, bytes) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), any, &bytes) != 0 || connect(made.caller.get(), any, bytes) != 0)
    return std::nullopt;
  made.called = fsccl::Fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (made.called.get() < 0) return std::nullopt;
  return made;
}

}  // namespace

std::optional<double> measured_tcp_ns_per_kib() {
  const std::optional<Connection> made = connected();
  if (!made) return std::nullopt;
  double best = 0;
  for (int i = 0; i < kTransfers; i++) {
    double received = 0;
    std::thread receiver([&] {
      received = moved_ns(made->called.get(), [](int fd, char* place, size_t bytes) {
        return recv(fd, place, bytes, 0);
      });
    });
    const double sent = moved_ns(made->caller.get(), [](int fd, const char* place, size_t bytes) {
      return send(fd, place, bytes, MSG_NOSIGNAL);
    });
    if (sent <= 0) shutdown(made->caller.get(), SHUT_RDWR);
    receiver.join();
    if (sent <= 0 || received <= 0) return std::nullopt;
    best = best > 0 ? std::min(best, sent + received) : sent + received;
  }
  return best / (static_cast<double>(kPiece * kPieces) / 1024);
}
