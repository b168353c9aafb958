#include "publish/link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/crc32c.h"

namespace fsccl::publish {

namespace {

constexpr int kReadsAtOnce = 64;  // limited so that other ranks have their turn

}  // namespace

void Link::connect(FramedSocket channel, int64_t now_ns) {
  channel_ = std::move(channel);
  heard_ns_ = now_ns;
  head_ = {};
  complete_ = gone_ = false;
  asked_ = 0;
}

void Link::disconnect() { connect(FramedSocket(), heard_ns_); }

Status Link::ask(uint64_t version) {
  gone_ = false;
  if (asked_ == version) return success();
  asked_ = version;
  channel_.queue(FrameType::kWant, encode(Want{version_, version}));
  // The message is a few bytes and the rank reads, so the socket takes all of it at once.
  return channel_.pump_out().take_status();
}

Status Link::confirm(uint64_t version) {
  channel_.queue(FrameType::kHave, encode_version(version));
  return channel_.pump_out().take_status();
}

Status Link::take_frame(const Frame& frame) {
  if (frame.type == FrameType::kNews) {
    FSCCL_ASSIGN(newest_, decode_version(frame.payload, "News"));
  } else if (frame.type == FrameType::kGone) {
    FSCCL_ASSIGN(const Gone gone, decode_gone(frame.payload));
    newest_ = gone.newest;
    if (gone.version != asked_) return success();  // it answers an earlier request
    gone_ = true;
    asked_ = 0;
  } else if (frame.type == FrameType::kVersion) {
    FSCCL_ASSIGN(const VersionHead head, decode_version_head(frame.payload, range_.words));
    if (head.base != 0 && head.base != version_) return bad_payload("Version");
    head_ = head;
    complete_ = head.bytes == 0;
    sound_ = true;
    received_ = block_filled_ = block_number_ = 0;
    if (head.base == 0) {
      whole_.reserve(range_.words);
      checksums_.assign(range_.blocks(), 0);
      counts_.whole_copies++;
    } else {
      records_.reserve(head.bytes);
    }
  } else if (frame.type == FrameType::kGoodbye) {
    ended_ = true;
  } else if (frame.type == FrameType::kFailure) {
    FSCCL_ASSIGN(const Failure failure, decode_failure(frame.payload));
    return to_status(failure);
  } else {
    return bad_payload("publisher's");
  }
  return success();
}

void Link::put_block() {
  const size_t words = range_.block_words(block_number_);
  uint16_t* const to = whole_.data() + range_.block_begin(block_number_);
  std::memcpy(to, block_.data() + kChecksumBytes, words * sizeof *to);
  whole_.wrote_up_to(range_.block_begin(block_number_) + words);
  uint32_t told = 0;
  std::memcpy(&told, block_.data(), sizeof told);
  checksums_[block_number_] = crc32c(to, words * sizeof *to);
  sound_ = sound_ && told == checksums_[block_number_];
  block_number_++;
  block_filled_ = 0;
}

// Takes bytes that follow a Version. Returns whether there were any.
Result<bool> Link::take_raw() {
  const uint64_t left = head_.bytes - received_;
  size_t count = 0;
  if (head_.base == 0) {
    const size_t size = kChecksumBytes + sizeof(uint16_t) * range_.block_words(block_number_);
    block_.resize(size);
    FSCCL_ASSIGN(count, channel_.take_raw(block_.data() + block_filled_, size - block_filled_));
    block_filled_ += count;
    counts_.whole_bytes += count;
    if (block_filled_ == size) put_block();
  } else {
    FSCCL_ASSIGN(count, channel_.take_raw(records_.data() + received_, left));
    records_.wrote_up_to(received_ + count);
  }
  received_ += count;
  counts_.received_bytes += count;
  complete_ = received_ == head_.bytes;
  return count > 0;
}

Status Link::read(int64_t now_ns) {
  Frame frame;
  for (int i = 0; i < kReadsAtOnce; i++) {
    if (receiving()) {
      FSCCL_ASSIGN(const bool any, take_raw());
      if (!any) return success();
      heard_ns_ = now_ns;
      continue;
    }
    FSCCL_ASSIGN(bool came, channel_.next(frame));
    if (!came) {
      const Status pumped = channel_.pump_in();
      FSCCL_ASSIGN(came, channel_.next(frame));
      if (!came) return pumped.clone();
    }
    heard_ns_ = now_ns;
    FSCCL_TRY(take_frame(frame));
  }
  return success();
}

bool Link::apply_records(DeltaScratch& scratch) {
  const uint8_t* at = records_.data();
  size_t left = head_.bytes;
  std::vector<uint32_t> sums(range_.blocks());
  for (uint64_t record = head_.base; record < head_.version; record++) {
    for (size_t block = 0; block < range_.blocks(); block++) {
      const DeltaRead read = decode_delta(at, left, words_.data() + range_.block_begin(block),
                                          range_.block_words(block), scratch);
      if (read.result != DeltaResult::good) return false;
      at += read.bytes;
      left -= read.bytes;
      sums[block] = read.sum;
    }
  }
  return left == 0 && crc32c(sums.data(), sums.size() * sizeof(uint32_t)) == head_.sum;
}

bool Link::apply(DeltaScratch& scratch) {
  const VersionHead head = std::exchange(head_, {});
  complete_ = false;
  asked_ = 0;
  if (head.base == 0) {
    sound_ = sound_ && crc32c(checksums_.data(), checksums_.size() * sizeof(uint32_t)) == head.sum;
    if (sound_) words_ = std::move(whole_);
    whole_ = {};
  } else {
    head_ = head;
    sound_ = apply_records(scratch);
    head_ = {};
    if (!sound_) version_ = 0;
  }
  if (!sound_) {
    counts_.damaged++;
    return false;
  }
  version_ = head.version;
  label_ = head.label;
  return true;
}

}  // namespace fsccl::publish
