// The flight recorder of a rank keeps the last events of its communicators in a ring. It is always
// on and costs a few nanoseconds an event. With FSCCL_TRACE_DIR the ring is a file in that folder,
// which outlives the process however the process ends. Otherwise the ring is memory, which
// fsccl_trace_dump() writes to a file.
//
// Any thread records, without a lock. It takes a record's number from a counter, and takes the
// record's place by an exchange of the place's last word, which it writes last. A reader that reads
// this word before and after the others therefore has a complete record, or knows that it has none.
// If another thread, which is a whole ring behind, still writes in that place, the event is left
// out. The table of communicators has a lock.
//
// These two locked instructions wait until earlier stores are visible. Just after a signal this
// wait takes longer than a whole small operation. So each communicator has a ring of its own for
// operations that complete at once; one thread at a time writes it, without locked instructions.
#pragma once
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "plan/fingerprint.h"
#include "record/recording.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#else
#include "base/clock.h"
#endif

namespace fsccl {

class Recorder {
 public:
  struct Config {
    std::string folder;  // empty: the ring is in memory
    uint32_t records = 0;
    uint64_t job = 0;
    int rank = 0, ranks = 1;
  };
  static Result<std::unique_ptr<Recorder>> create(const Config& config);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  // Writes every recorder of this process into files of `folder`.
  static Status write_all(const std::string& folder);

  // Returns the number by which records name the communicator; 0 if the table is full.
  uint16_t add(uint64_t tag, const std::string& name, int rank, int size);
  void remove(uint16_t communicator);
  // Records the error that ended the communicator, in the table and as an event.
  void failed(uint16_t communicator, const Error& error, uint64_t sequence);

  void record(recording::Event event, uint16_t communicator, const Fingerprint& what, int peer) {
    put(event, communicator, what, peer, what.count);
  }
  // Records an operation that completed at once. One thread at a time may call this for a
  // communicator.
  void at_once(uint16_t communicator, const Fingerprint& what) {
    // Several communicators may share number 0, so their events go into the ring of all.
    if (communicator == 0) return record(recording::Event::at_once, 0, what, what.root);
    recording::Words& to =
        at_once_[communicator * recording::kAtOnce + what.sequence % recording::kAtOnce];
    std::atomic_ref(to[3]).store(recording::kWriting, std::memory_order_relaxed);
    fill(to, recording::Event::at_once, communicator, what, what.root, what.count,
         what.sequence / recording::kAtOnce);
    if (what.sequence % kLookEvery == 0) [[unlikely]]
      look_at_clock();
  }
  void note(recording::Event event, uint16_t communicator, int peer) {
    put(event, communicator, Fingerprint{}, peer, 0);
  }
  // Record that this rank waits for rank `peer` of the job outside of operations, and that this
  // wait is over.
  void waits(uint16_t communicator, int peer, recording::Duty duty) {
    Fingerprint what;
    what.kind = static_cast<uint8_t>(duty);
    put(recording::Event::waits, communicator, what, peer, 0);
    look_at_clock();
  }
  void goes_on(uint16_t communicator, int peer) {
    put(recording::Event::goes_on, communicator, Fingerprint{}, peer, 0);
  }
  // Records the silence of a rank of the job. The event belongs to no communicator.
  void silence(recording::Event event, int peer, int64_t silent_ms, bool stopped) {
    Fingerprint what;
    what.kind = stopped ? 1 : 0;
    put(event, 0, what, peer, static_cast<uint64_t>(silent_ms));
    look_at_clock();
  }
  // Notes the current time on both clocks, from which a reader converts the counter to times. It
  // is called now and then, where the time that it takes does not matter.
  void look_at_clock();

 private:
  static constexpr uint64_t kLookEvery = 4096;
  Recorder() = default;
  static uint64_t ticks() {
#if defined(__x86_64__)
    return __rdtsc();
#else
    return static_cast<uint64_t>(now_ns());
#endif
  }
  void put(recording::Event event, uint16_t communicator, const Fingerprint& what, int peer,
           uint64_t count) {
    const uint64_t number = std::atomic_ref(*next_).fetch_add(1, std::memory_order_relaxed);
    recording::Words& to = records_[number & mask_];
    // This exchange pairs with the store of the last word in fill() by the previous writer of this
    // place.
    if (std::atomic_ref(to[3]).exchange(recording::kWriting, std::memory_order_acquire) ==
        recording::kWriting)
      return;
    fill(to, event, communicator, what, peer, count, number >> round_bits_);
    if (number % kLookEvery == 0) [[unlikely]]
      look_at_clock();
  }
  // Writes the record into a place whose last word already is kWriting.
  static void fill(recording::Words& to, recording::Event event, uint16_t communicator,
                   const Fingerprint& what, int peer, uint64_t count, uint64_t round) {
    // The words are made by shifts. If they were assembled from bytes in memory, loading a word
    // would wait for the stores of its bytes.
    const uint64_t whose = static_cast<uint32_t>(what.sequence) | uint64_t(uint32_t(peer)) << 32;
    const uint64_t which = communicator | uint64_t(event) << 16 | uint64_t(what.op) << 24 |
                           uint64_t{what.dtype} << 32 | uint64_t{what.kind} << 40 |
                           uint64_t{recording::stamp_of(round)} << 48;
    // Each of these stores pairs with the load of the same word in whole_record().
    // The words form a recording::Record. Each store is a release, so a reader that has seen one of
    // these words sees, when it then reads the last word, that the record is being written.
    std::atomic_ref(to[0]).store(ticks(), std::memory_order_release);
    std::atomic_ref(to[1]).store(count, std::memory_order_release);
    std::atomic_ref(to[2]).store(whose, std::memory_order_release);
    std::atomic_ref(to[3]).store(which, std::memory_order_release);
  }
  class Change;  // a change of the header or the table
  Status write(const std::string& path);
  std::string file_name() const;

  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
  recording::Header* header_ = nullptr;
  recording::Communicator* table_ = nullptr;
  uint64_t* next_ = nullptr;
  recording::Words* at_once_ = nullptr;  // [communicator][kAtOnce]
  recording::Words* records_ = nullptr;
  uint32_t mask_ = 0;
  int round_bits_ = 0;  // a record's number >> round_bits_ is its round of the ring
  pid_t owner_ = 0;     // the process that mapped it
  std::mutex mutex_;
};

}  // namespace fsccl
