#include "allocators/host/guarded_view.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "allocators/host/arena.h"
#include "allocators/host/fault_notes.h"

namespace fsccl {
namespace {

constexpr uint64_t kViewPage = 4096;

class Guarded : public ::testing::Test {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    std::signal(SIGSEGV, SIG_DFL);  // a sanitizer has a handler of its own
    ASSERT_TRUE(arena.reserve(0, 0, 8 * kViewPage, false).ok());
  }
  volatile char* at(uint64_t offset) {
    return reinterpret_cast<volatile char*>(view.base()) + control + offset;
  }

  HostArena arena = HostArena::create(1, kViewPage, 8 * kViewPage).take();
  uint64_t control = static_cast<uint64_t>(arena.region(0) - arena.control());
  GuardedView view = GuardedView::create(arena.fd(), control + 8 * kViewPage).take();
};

TEST_F(Guarded, ShowsTheArenaWhereItIsOpen) {
  ASSERT_TRUE(set_access(view.base() + control + kViewPage + 100, 10, Access::read));
  arena.region(0)[kViewPage] = std::byte(5);
  EXPECT_EQ(*at(kViewPage), 5);
  ASSERT_TRUE(set_access(view.base() + control, 3 * kViewPage, Access::write));
  *at(2 * kViewPage + 7) = 9;
  EXPECT_EQ(arena.region(0)[2 * kViewPage + 7], std::byte(9));
  EXPECT_EXIT(*at(3 * kViewPage) = 1, ::testing::KilledBySignal(SIGSEGV), "")
      << "the page behind it is closed";
}

TEST_F(Guarded, ClosedAndReadOnlyPagesFault) {
  const int note = add_fault_note(), old = add_fault_note();
  set_fault_note(old, view.base() + control, 4 * kViewPage, "an older note");
  set_fault_note(note, view.base() + control, 2 * kViewPage, "the thing");
  EXPECT_EXIT((void)*at(17), ::testing::KilledBySignal(SIGSEGV),
              "fsccl: .*0x[0-9a-f]+, byte 17 of the thing\n");
  EXPECT_EXIT((void)*at(3 * kViewPage), ::testing::KilledBySignal(SIGSEGV),
              "byte 12288 of an older note");
  EXPECT_EXIT((void)*at(6 * kViewPage), ::testing::KilledBySignal(SIGSEGV), "");
  ASSERT_TRUE(set_access(view.base() + control, kViewPage, Access::read));
  EXPECT_EXIT(*at(0) = 1, ::testing::KilledBySignal(SIGSEGV), "byte 0 of the thing");
  remove_fault_note(note);
  EXPECT_EXIT(*at(0) = 1, ::testing::KilledBySignal(SIGSEGV), "an older note");
  remove_fault_note(old);
}

TEST(FaultNotes, TheTableHasAnEndAndLongTextsToo) {
  std::vector<int> notes;
  for (int note = add_fault_note(); note >= 0; note = add_fault_note()) notes.push_back(note);
  EXPECT_EQ(notes.size(), kFaultNotes);
  set_fault_note(notes.back(), &notes, sizeof notes, std::string(1000, 'x'));
  set_fault_note(-1, &notes, sizeof notes, "nothing");
  for (const int note : notes) remove_fault_note(note);
  const int again = add_fault_note();
  EXPECT_GE(again, 0);
  remove_fault_note(again);
}

}  // namespace
}  // namespace fsccl
