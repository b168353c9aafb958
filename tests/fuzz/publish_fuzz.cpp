// Fuzzes the messages between a subscriber and a publishing rank. The first byte chooses one of
// these: a message or the catalog, which come back byte for byte if they are accepted; all bytes
// that a rank sends over a connection, from which a subscriber never gets a version whose checksums
// are wrong; or the bytes that a subscriber sends, which a rank answers or refuses.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "kernels/crc32c.h"
#include "publish/catalog.h"
#include "publish/feed.h"
#include "publish/link.h"
#include "publish/messages.h"
#include "wire/frame.h"

namespace {

using namespace fsccl;
using namespace fsccl::publish;

constexpr uint64_t kPublished = 600;

template <class T>
void same_again(const Result<T>& decoded, ByteView payload) {
  if (!decoded.ok()) return;
  const Bytes again = encode(decoded.value());
  FUZZ_REQUIRE(std::ranges::equal(again, payload));
}

void read_catalog(ByteView payload) {
  const Result<Catalog> catalog = decode_catalog(payload);
  same_again(catalog, payload);
  if (catalog.ok()) (void)layouts_of(catalog.value()).ok();
}

struct Ends {
  Fd ours, theirs;
};
Ends connect_ends() {
  int fds[2];
  FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

WordRange range() {
  WordRange made;
  made.words = kPublished;
  return made;
}

void hear_rank(ByteView bytes) {
  const WordRange words = range();
  Link link(words);
  Ends ends = connect_ends();
  (void)send(ends.theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ends.theirs.reset();
  link.connect(FramedSocket(std::move(ends.ours), kMaxRequestBytes), 1);
  DeltaScratch scratch;
  for (int i = 0; i < 200; i++) {
    const bool heard = link.read(1).ok();
    for (uint64_t version = 1; version < 4; version++) {
      if (link.version() == version || !link.ready(version)) continue;
      if (link.apply(scratch)) FUZZ_REQUIRE(link.version() == version);
    }
    if (!heard) break;
  }
}

void hear_subscriber(ByteView bytes) {
  History history(kPublished, 1 << 16);
  std::vector<uint16_t> words(kPublished, 7);
  DeltaScratch scratch;
  for (uint16_t version = 1; version < 4; version++) {
    words[version] = version;
    history.begin(true);
    history.keep(0);
    history.encode(0, words.data(), DeltaForm::coded, scratch);
    history.add_encoded(0);
    history.end(version);
  }
  Ends ends = connect_ends();
  (void)send(ends.theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  ends.theirs.reset();
  Feed feed(std::make_shared<FramedSocket>(std::move(ends.ours), 64), 1);
  for (int i = 0; i < 4; i++) {
    const bool heard = feed.read(history).ok();
    if (!heard || !feed.write(history, 1).ok()) break;
  }
  feed.stop(history);
  FUZZ_REQUIRE(history.version() == 3 && history.held_bytes() <= history.limit_bytes());
}

void append(Bytes& all, const Bytes& more) { all.insert(all.end(), more.begin(), more.end()); }

// Returns a whole copy and two records, as a rank sends them.
Bytes good_talk() {
  Bytes talk = encode_frame(FrameType::kNews, encode_version(3));
  std::vector<uint16_t> words(kPublished), previous(kPublished);
  for (size_t i = 0; i < kPublished; i++) words[i] = static_cast<uint16_t>(i * i);
  uint32_t sum = crc32c(words.data(), 2 * kPublished);
  const auto sums = [&] { return crc32c(&sum, sizeof sum); };
  append(talk, encode_frame(FrameType::kVersion,
                            encode(VersionHead{0, 1, 5, whole_bytes(kPublished), sums()})));
  append(talk, ByteWriter().put(sum).put_raw(words.data(), 2 * kPublished).take());
  previous = words;
  DeltaScratch scratch;
  Bytes records;
  for (int version = 2; version < 4; version++) {
    words[17]++;
    Bytes record(delta_block_bound(kPublished));
    const DeltaWritten written = encode_delta(words.data(), previous.data(), kPublished,
                                              DeltaForm::coded, record.data(), scratch);
    record.resize(written.bytes);
    sum = written.sum;
    append(records, record);
  }
  append(talk,
         encode_frame(FrameType::kVersion, encode(VersionHead{1, 3, 6, records.size(), sums()})));
  append(talk, records);
  append(talk, encode_frame(FrameType::kGone, encode(Gone{8, 9})));
  append(talk, encode_frame(FrameType::kGoodbye, {}));
  return talk;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const ByteView payload(data + 1, bytes - 1);
  switch (data[0] % 5) {
    case 0:
      same_again(decode_want(payload), payload);
      same_again(decode_gone(payload), payload);
      same_again(decode_version_head(payload, kPublished), payload);
      break;
    case 1:
      read_catalog(payload);
      break;
    case 2:
      (void)decode_rank_address(payload).ok();  // padding may follow the address
      break;
    case 3:
      hear_rank(payload);
      break;
    default:
      hear_subscriber(payload);
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, const Bytes& bytes) {
    seeds.push_back(seed_of(kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  };
  add(0, encode(Want{3, 4}));
  add(0, encode(VersionHead{1, 2, 3, 40, 5}));
  Catalog catalog;
  catalog.number = 7;
  catalog.params = {{"a", {{3, 4}}, FSCCL_BFLOAT16}, {"b", {{}}, FSCCL_FLOAT32}};
  catalog.unit_params = {1, 1};
  catalog.addresses.resize(2);
  catalog.addresses[1].port = 99;
  catalog.addresses[1].ips = {{1, 2, 3}};
  add(1, encode(catalog));
  add(2, encode(catalog.addresses[1]));
  add(3, good_talk());
  Bytes asks = encode_frame(FrameType::kWant, encode(Want{0, 3}));
  append(asks, encode_frame(FrameType::kHave, encode_version(3)));
  append(asks, encode_frame(FrameType::kWant, encode(Want{1, 3})));
  add(4, asks);
  return seeds;
}
