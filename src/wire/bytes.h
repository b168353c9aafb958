// Reads and writes little-endian bytes. A reader never passes the end of its bytes: a read beyond
// it gives zeros, and finished() returns false then.
#pragma once
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace fsccl {

using Bytes = std::vector<uint8_t>;
using ByteView = std::span<const uint8_t>;

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "the codecs copy integers as they are in memory");

class ByteWriter {
 public:
  explicit ByteWriter(size_t reserve_bytes = 0) { bytes_.reserve(reserve_bytes); }

  template <class T>
    requires std::is_integral_v<T>
  ByteWriter& put(T value) {
    return put_raw(&value, sizeof(T));
  }
  template <size_t N>
  ByteWriter& put(const std::array<uint8_t, N>& value) {
    return put_raw(value.data(), N);
  }
  ByteWriter& put_raw(const void* data, size_t bytes) {
    const auto* const first = static_cast<const uint8_t*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
    return *this;
  }
  Bytes take() { return std::move(bytes_); }
  const Bytes& bytes() const { return bytes_; }

 private:
  Bytes bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(ByteView bytes) : bytes_(bytes) {}

  template <class T>
    requires std::is_integral_v<T>
  T get() {
    T value = 0;
    get_raw(&value, sizeof(T));
    return value;
  }
  template <size_t N>
  void get(std::array<uint8_t, N>& value) {
    value.fill(0);
    get_raw(value.data(), N);
  }
  // Returns a view of the next bytes; it is empty if there are fewer.
  ByteView view(size_t bytes) {
    if (!enough(bytes)) return {};
    const ByteView result = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return result;
  }
  ByteView rest() { return view(bytes_.size()); }
  size_t left() const { return bytes_.size(); }
  // Returns true if no byte was missing and none is left over.
  bool finished() const { return !short_ && bytes_.empty(); }
  bool good() const { return !short_; }

 private:
  bool enough(size_t bytes) {
    if (bytes > bytes_.size()) short_ = true;
    return !short_;
  }
  void get_raw(void* data, size_t bytes) {
    if (!enough(bytes)) return;
    std::memcpy(data, bytes_.data(), bytes);
    bytes_ = bytes_.subspan(bytes);
  }

  ByteView bytes_;
  bool short_ = false;
};

}  // namespace fsccl
