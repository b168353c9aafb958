// A GPU as these test programs use it: memory, streams, and gates that hold a stream until they are
// opened. Like the library it needs only NVIDIA's driver, which it loads at run time, so the same
// programs run on a GPU and over the stand-in driver (tests/stand_in/cuda).
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace fsccl::testing {

class Gpu {
 public:
  // Returns device 0, whose primary context is current in this thread. If there is none, returns
  // null and sets *why.
  static const Gpu* open(std::string* why);

  // Each of these functions returns false after it has printed what failed.
  bool copy(void* to, const void* from, size_t bytes, void* stream) const;
  bool fill(void* to, unsigned char value, size_t bytes, void* stream) const;
  bool wait(void* stream) const;  // until the stream has done all its work
  // Orders later work of `stream` behind the work of `first` so far.
  bool follow(void* stream, void* first) const;
  bool idle(void* stream) const;  // nothing is left to do; prints nothing

  void* make_stream() const;  // never null
  void* allocate(size_t bytes) const;
  bool is_device(const void* pointer) const;

  // A gate. Work that is put on a stream after shut() waits until open() is called.
  class Gate {
   public:
    explicit Gate(const Gpu& gpu);
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    bool shut(void* stream) const;
    void open() const;

   private:
    const Gpu& gpu_;
    std::atomic<uint32_t>* flag_;
    unsigned long long address_ = 0;
  };

  template <typename T>
  std::vector<T> read(const void* from, size_t count, void* stream) const {
    std::vector<T> values(count);
    if (count > 0 && (!copy(values.data(), from, count * sizeof(T), stream) || !wait(stream)))
      values.clear();
    return values;
  }

 private:
  Gpu() = default;
  bool load(std::string* why);
  bool good(const char* what, int code) const;
  struct Functions;
  Functions* cuda_ = nullptr;
};

}  // namespace fsccl::testing
