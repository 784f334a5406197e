// Layout of BytePS's memory as far as the hook needs it: the fields of a TensorTableEntry, and the numbers of stages.
//
// Rule of this file: facts about BytePS's binary interface, and safe ways to read its memory. The offsets follow from
// the order of the members in BytePS's common.h. std::string has 32 bytes in the new C++ ABI and 8 in the old one, and
// everything after the name shifts accordingly. A library's exported names tell which ABI and stages it has
// (plugins/byteps/prophet_byteps/library.py).
#pragma once

#include <sys/uio.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

namespace prophet {

// BytePS's QueueType, in its order since 0.2.5.
enum class Stage : int {
  kCoordinateReduce,
  kReduce,
  kCopyD2H,
  kPcieReduce,
  kCoordinatePush,
  kCompress,
  kPush,
  kPull,
  kDecompress,
  kCopyH2D,
  kCoordinateBroadcast,
  kBroadcast,
  kCount
};
inline constexpr int kStages = static_cast<int>(Stage::kCount);

struct EntryLayout {
  size_t name_bytes = 32;  // sizeof(std::string): 32 in the new ABI, 8 in the old

  size_t key() const { return name_bytes; }
  size_t priority() const { return name_bytes + 48; }
  size_t queue_list() const { return name_bytes + 160; }
  size_t offset() const { return name_bytes + 184; }
  size_t length() const { return name_bytes + 188; }
  size_t partitions() const { return name_bytes + 208; }
};

// Fields of one task that the scheduler uses.
struct EntryFields {
  uint64_t key = 0;
  int32_t priority = 0;
  uint32_t length = 0;

  uint32_t declared_key() const { return static_cast<uint32_t>(key >> 16); }
  uint16_t partition() const { return static_cast<uint16_t>(key & 0xffff); }
};

inline EntryFields read_entry(const void* entry, const EntryLayout& layout) {
  const char* base = static_cast<const char*>(entry);
  EntryFields fields;
  std::memcpy(&fields.key, base + layout.key(), sizeof(fields.key));
  std::memcpy(&fields.priority, base + layout.priority(), sizeof(fields.priority));
  std::memcpy(&fields.length, base + layout.length(), sizeof(fields.length));
  return fields;
}

// Copy memory of this process. Return false, instead of crashing, if it is not mapped.
inline bool read_safely(const void* address, void* out, size_t bytes) {
  iovec local{out, bytes};
  iovec remote{const_cast<void*>(address), bytes};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(bytes);
}

// Return a tensor's name from its BytePSContext, where it follows a flag and a mutex. In both ABIs a std::string begins
// with a pointer to the text.
inline const char* context_name(const void* context) {
  const char* text;
  std::memcpy(&text, static_cast<const char*>(context) + 48, sizeof(text));
  return text;
}

// True if the context has a tensor's name at the expected place.
inline bool is_named(const void* context) {
  constexpr char kPrefix[] = "byteps.";
  char head[56], begins[sizeof(kPrefix) - 1];
  return read_safely(context, head, sizeof(head)) && read_safely(context_name(head), begins, sizeof(begins)) &&
         std::memcmp(begins, kPrefix, sizeof(begins)) == 0;
}

// True if a task's name is a string that ends with the number of its partition, as in `gradient_0`. `head` has the
// first bytes of the task.
inline bool is_named_by_partition(const char* head, const EntryLayout& layout, unsigned partition) {
  constexpr size_t kLongest = 1 << 16;
  const char* text;
  size_t length;
  std::memcpy(&text, head, sizeof(text));
  if (layout.name_bytes == 8) {  // the length is three words before the text
    if (!read_safely(text - 3 * sizeof(size_t), &length, sizeof(length))) return false;
  } else {
    std::memcpy(&length, head + sizeof(text), sizeof(length));
  }
  char wanted[16], end[16];
  size_t bytes = std::snprintf(wanted, sizeof(wanted), "_%u", partition) + 1;  // with the final zero
  if (length + 1 < bytes || length > kLongest) return false;
  return read_safely(text + length + 1 - bytes, end, bytes) && std::memcmp(wanted, end, bytes) == 0;
}

// Return why the entry cannot have the assumed layout, or null if it looks sane. BytePS is adding it to the queue of
// `stage`, which must be the first in the entry's list of stages.
inline const char* why_insane(const void* entry, const EntryLayout& layout, Stage stage) {
  char head[256];
  if (!read_safely(entry, head, layout.partitions() + sizeof(uint32_t))) return "a task that cannot be read";
  uint64_t key;
  uint32_t offset, length, partitions;
  const int* stages[2];
  std::memcpy(&key, head + layout.key(), sizeof(key));
  std::memcpy(&offset, head + layout.offset(), sizeof(offset));
  std::memcpy(&length, head + layout.length(), sizeof(length));
  std::memcpy(&partitions, head + layout.partitions(), sizeof(partitions));
  std::memcpy(stages, head + layout.queue_list(), sizeof(stages));
  if (key >> 48) return "a key of more than 48 bits";
  if (partitions == 0 || partitions > 65536) return "an impossible number of partitions";
  if ((key & 0xffff) >= partitions) return "a partition beyond the number of partitions";
  if (!is_named_by_partition(head, layout, key & 0xffff)) return "a name that is not its partition's";
  if (length == 0) return "an empty partition";
  if ((key & 0xffff) == 0 && offset != 0) return "a first partition that does not start at 0";
  ptrdiff_t count = stages[1] - stages[0];
  if (count < 1 || count > kStages) return "an impossible list of stages";
  int first;
  if (!read_safely(stages[0], &first, sizeof(first))) return "a list of stages that cannot be read";
  if (first != static_cast<int>(stage)) return "a list of stages that does not begin with its queue";
  return nullptr;
}

}  // namespace prophet
