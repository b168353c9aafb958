// Tests which tables of plug-ins are accepted, and the errors for the others.
#include "transports/plugin.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <future>

namespace fsccl {
namespace {

using ::testing::HasSubstr;

// Returns a table with all functions, the optional ones included.
fsccl_transport_ops_t good() {
  fsccl_transport_ops_t ops{};
  void (*const function)() = [] { abort(); };  // nobody calls it
  for (size_t at = offsetof(fsccl_transport_ops_t, available); at < sizeof ops;
       at += sizeof function)
    std::memcpy(reinterpret_cast<char*>(&ops) + at, &function, sizeof function);
  ops.keeps_pages = 0;
  ops.size = sizeof ops;
  ops.abi = FSCCL_TRANSPORT_ABI;
  ops.name = "outside";
  return ops;
}

void expect_refused(const fsccl_transport_ops_t* ops, const std::string& words) {
  const auto taken = checked_table(ops);
  ASSERT_FALSE(taken.ok()) << words;
  EXPECT_EQ(taken.status().code(), FSCCL_ERR_NOT_AVAILABLE);
  EXPECT_THAT(taken.status().text(), HasSubstr(words));
}

struct Member {
  const char* name;
  size_t offset;
};
#define MEMBER(name) \
  Member { #name, offsetof(fsccl_transport_ops_t, name) }

fsccl_transport_ops_t without(const Member& member) {
  fsccl_transport_ops_t ops = good();
  std::memset(reinterpret_cast<char*>(&ops) + member.offset, 0, sizeof(void*));
  return ops;
}

TEST(PluginTable, IsTakenWhole) {
  const fsccl_transport_ops_t ops = good();
  const auto taken = checked_table(&ops);
  ASSERT_TRUE(taken.ok()) << taken.status().text();
  EXPECT_EQ(std::memcmp(&taken.value(), &ops, sizeof ops), 0);
}

TEST(PluginTable, NeedsItsFunctions) {
  for (const Member& member :
       {MEMBER(available), MEMBER(join), MEMBER(connect), MEMBER(leave), MEMBER(open),
        MEMBER(close), MEMBER(signal), MEMBER(poll), MEMBER(word), MEMBER(can_read), MEMBER(read),
        MEMBER(slots), MEMBER(reserve), MEMBER(put), MEMBER(rest), MEMBER(fail), MEMBER(failure),
        MEMBER(left), MEMBER(pair)}) {
    const fsccl_transport_ops_t ops = without(member);
    expect_refused(&ops, std::string("its table has no ") + member.name + "()");
  }
}

TEST(PluginTable, HasBothOfAPairOrNeither) {
  for (const Member& member : {MEMBER(expect), MEMBER(placed), MEMBER(path), MEMBER(take_path)}) {
    const fsccl_transport_ops_t ops = without(member);
    expect_refused(&ops, std::string(member.name) + "()");
  }
  fsccl_transport_ops_t least = good();
  least.expect = nullptr, least.placed = nullptr, least.path = nullptr, least.take_path = nullptr;
  least.signal_to = nullptr, least.hear_out = nullptr, least.hold = nullptr;
  EXPECT_TRUE(checked_table(&least).ok());
}

TEST(PluginTable, OfAnotherVersionIsRefused) {
  expect_refused(nullptr, "no table of version 1");
  fsccl_transport_ops_t ops = good();
  ops.abi = FSCCL_TRANSPORT_ABI + 1;
  expect_refused(&ops, "version 2");
}

TEST(PluginTable, MayBeLonger) {
  struct {
    fsccl_transport_ops_t ops = good();
    void* later[3] = {this, this, this};
  } longer;
  longer.ops.size = sizeof longer;
  const auto taken = checked_table(&longer.ops);
  ASSERT_TRUE(taken.ok()) << taken.status().text();
  EXPECT_EQ(taken.value().size, sizeof(fsccl_transport_ops_t));
}

// The library does not read memory behind the end of the table, which its `size` gives.
TEST(PluginTable, HasWhatItsSizeSays) {
  fsccl_transport_ops_t ops = good();
  ops.size = offsetof(fsccl_transport_ops_t, path);
  auto taken = checked_table(&ops);
  ASSERT_TRUE(taken.ok()) << taken.status().text();
  EXPECT_TRUE(!taken.value().path && !taken.value().take_path && !taken.value().signal_to &&
              !taken.value().hold);
  EXPECT_NE(taken.value().pair, nullptr);
  ops.size = offsetof(fsccl_transport_ops_t, hold);
  taken = checked_table(&ops);
  ASSERT_TRUE(taken.ok()) << taken.status().text();
  EXPECT_TRUE(taken.value().hear_out && !taken.value().hold);

  for (const size_t size : {size_t{0}, sizeof(size_t), offsetof(fsccl_transport_ops_t, pair),
                            ops.size - sizeof(void*) / 2}) {
    ops.size = size;
    expect_refused(&ops, "its table has " + std::to_string(size) + " bytes");
  }
  // These sizes contain a part of a pointer.
  for (const size_t size :
       {offsetof(fsccl_transport_ops_t, hold) + sizeof(void*) / 2, sizeof ops - 1}) {
    ops.size = size;
    expect_refused(&ops, "whole functions");
  }
}

TEST(PluginTable, HasANameOfItsOwn) {
  fsccl_transport_ops_t ops = good();
  for (const char* name : {"a", "my_net-2", "fifteen-letters"}) {
    ops.name = name;
    EXPECT_TRUE(checked_table(&ops).ok()) << name;
  }
  const char endless[] = {'1', '2', '3', '4', '5', '6', '7', '8',
                          '9', '0', 'a', 'b', 'c', 'd', 'e', 'f'};
  for (const char* name : std::initializer_list<const char*>{nullptr, "", "Upper", "a name",
                                                             "caf\xc3\xa9", "a/b", endless}) {
    ops.name = name;
    expect_refused(&ops, "its name is not 1 to 15 of a-z, 0-9, _ and -");
  }
  for (const char* name : {"shm", "tcp", "ucx", "plugin"}) {
    ops.name = name;
    expect_refused(&ops,
                   std::string("its name is ") + name + ", which is that of a built-in transport");
  }
}

TEST(Plugin, IsLoadedOnce) {
  const char* const path = std::getenv("PLUGIN");
  ASSERT_NE(path, nullptr) << "PLUGIN names none";
  const auto first = plugin_transport(path), again = plugin_transport(path);
  ASSERT_TRUE(first.ok()) << first.status().text();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(first.value(), again.value());
  EXPECT_STREQ(first.value()->name(), "memfd");
}

// The descriptors that the ranks of a channel, threads here, offer each other.
struct Offers {
  std::array<std::promise<int>, 2> made;
  std::array<std::shared_future<int>, 2> all{made[0].get_future(), made[1].get_future()};
};
class OfferingRank final : public Opening {
 public:
  OfferingRank(Offers& offers, int rank) : offers_(offers), rank_(rank) {}
  Status publish_fd(int fd) override {
    offered_ = Fd(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    offers_.made[static_cast<size_t>(rank_)].set_value(offered_.get());
    return success();
  }
  Result<Fd> fetch_fd(int rank) override {
    return Fd(fcntl(offers_.all[static_cast<size_t>(rank)].get(), F_DUPFD_CLOEXEC, 0));
  }
  bool cancelled() override { return false; }

 private:
  Offers& offers_;
  const int rank_;
  Fd offered_;
};

// A thread that sleeps in a channel or in a pair looks at the board when its word has changed.
TEST(Plugin, OfTheExamplesWakesWhoSleepsInAPairThatFails) {
  const Transport* const transport = plugin_transport(std::getenv("PLUGIN")).value();
  const uint64_t hosts[2] = {};
  const unsigned char key[32] = {};
  const auto node = transport->join({sizeof(fsccl_transport_job_t), 0, 2, key, 0, hosts}).take();
  for (const bool in_pair : {false, true}) {
    Offers offers;
    OfferingRank ranks[] = {{offers, 0}, {offers, 1}};
    const auto open = [&](int rank) {
      int32_t concerns = 0;
      ChannelRequest request;
      request.rank = rank;
      request.ranks = 2;
      request.node = node.get();
      request.concerns = &concerns;
      request.opening = &ranks[rank];
      return transport->open(request).take().channel;
    };
    auto other = std::async(std::launch::async, [&] { return open(1); });
    const std::unique_ptr<Channel> channels[] = {open(0), other.get()};
    const auto to = channels[0]->pair(0, 1).take().channel,
               back = channels[1]->pair(1, 0).take().channel;
    fsccl_transport_word_t words[4];
    channels[0]->word(1, 1, &words[0]);
    channels[1]->word(0, 1, &words[1]);
    to->word(1, 1, &words[2]);
    back->word(0, 1, &words[3]);
    (in_pair ? *to : *channels[0]).fail({});
    for (const fsccl_transport_word_t& word : words) EXPECT_NE(*word.word, word.value);
  }
}

TEST(Plugin, ThatIsNoneIsExplained) {
  const std::pair<const char*, std::vector<const char*>> none[] = {
      {"", {"FSCCL_TRANSPORT_PLUGIN names none", "on all ranks"}},
      {"/nowhere/plugin.so", {"'/nowhere/plugin.so'", "cannot be loaded", "No such file"}},
      {"/dev/null", {"'/dev/null'", "cannot be loaded"}},
      {"libm.so.6", {"'libm.so.6'", "exports no fsccl_transport_plugin()"}}};
  for (const auto& [path, words] : none) {
    const auto loaded = plugin_transport(path);
    ASSERT_FALSE(loaded.ok()) << path;
    EXPECT_EQ(loaded.status().code(), FSCCL_ERR_NOT_AVAILABLE);
    for (const char* word : words) EXPECT_THAT(loaded.status().text(), HasSubstr(word));
  }
}

}  // namespace
}  // namespace fsccl
