// Cuts the bytes that arrive over one socket into messages. Bytes go straight to their destination:
// the thread that reads the socket asks for the destination (`room`), reads, and reports the number
// of bytes (`took`). The first bytes are read into a buffer of 20 KiB, so that a message of up to
// 16 KiB takes one system call. One recvmsg reads the rest of a larger message to its destination,
// and the beginning of the next one behind it.
//
// Invariant: a head is checked before anything is written because of it, and the reader is asked
// again for the destination before each write. The destination is where the engine expects the
// bytes, or the mirror. Once the channel has failed it is the mirror, so the caller's memory is not
// touched any more.
#pragma once
#include <sys/uio.h>

#include <array>
#include <memory>

#include "transports/tcp/wire.h"

namespace fsccl::tcp {

class Inbox {
 public:
  class Reader {
   public:
    // A message begins. Returns the destination of its bytes, or null if they are not wanted.
    virtual std::byte* begin(const Head& head) = 0;
    // More bytes of it can be written. Returns the destination of the message, for which `place`
    // was the last answer.
    virtual std::byte* go_on(const Head& head, std::byte* place) = 0;
    // All bytes of it are there. Returns false if this was the last message.
    virtual bool end(const Head& head, std::byte* place) = 0;
    // The head has wrong contents.
    virtual void spoilt(const Head& head) = 0;

   protected:
    ~Reader() = default;
  };
  Inbox(Reader& reader, bool checksum) : reader_(reader), checksum_(checksum) {}

  // Returns one or two places for the next bytes.
  int room(std::array<iovec, 2>& places);
  // Returns false if nothing more is to be read.
  bool took(size_t bytes);
  // Returns true if more bytes of a message must follow.
  bool inside() const { return inside_; }

 private:
  size_t left() const { return head_.bytes - got_; }
  bool parse();
  bool finish();

  Reader& reader_;
  const bool checksum_;
  bool inside_ = false;  // a message has begun and is not complete
  Head head_{};
  size_t got_ = 0;  // the number of its bytes that have arrived
  std::byte* place_ = nullptr;
  // The end of the buffered bytes: heads, the bytes of small messages, the first bytes of larger
  // ones.
  size_t end_ = 0;
  // It is made at the first read, because most ranks of a job exchange nothing.
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace fsccl::tcp
