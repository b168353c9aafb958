// The bytes that come over one socket, cut into messages. Bytes go straight to their destination:
// the thread that reads the socket asks for the destination (`room`), reads, and reports the number
// of bytes (`took`). A little of the next message is read with the bytes of a message, so that a
// message mostly costs one call of the system.
//
// Invariant: a head is checked before anything is written by its word, and before each write its
// reader is asked anew for the destination.
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
    // A message begins: where its bytes go; null: nobody wants them.
    virtual std::byte* begin(const Head& head) = 0;
    // More of them are there to write: where they go now, of which `place` was the last answer.
    virtual std::byte* go_on(const Head& head, std::byte* place) = 0;
    // All are there. False: this was the last message.
    virtual bool end(const Head& head, std::byte* place) = 0;
    // The head is not one.
    virtual void spoilt(const Head& head) = 0;

   protected:
    ~Reader() = default;
  };
  Inbox(Reader& reader, bool checksum) : reader_(reader), checksum_(checksum) {}

  // Returns where the next bytes go: one or two places.
  int room(std::array<iovec, 2>& places);
  // False: no more is to be read.
  bool took(size_t bytes);
  // More bytes of a message are to come.
  bool inside() const { return inside_; }

 private:
  size_t left() const { return head_.bytes - got_; }
  bool parse();
  bool finish();

  Reader& reader_;
  const bool checksum_;
  bool inside_ = false;  // a message
  Head head_{};
  size_t got_ = 0;  // bytes of it that have come
  std::byte* place_ = nullptr;
  // end of the buffered bytes: heads, the bytes of small messages, the first bytes of larger ones
  size_t end_ = 0;
  // from the first read on: most ranks of a job exchange nothing
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace fsccl::tcp
