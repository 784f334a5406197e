// Stand-in for libnuma: a machine seen as one memory node. BytePS binds memory to nodes only where the devices of one
// worker sit behind several PCIe switches, which never happens with one device a worker. Signatures follow numa(3).

#ifndef PROPHET_ENGINE_NUMA_H_
#define PROPHET_ENGINE_NUMA_H_

struct bitmask;

static bitmask* const numa_all_nodes_ptr = nullptr;
static bitmask* const numa_no_nodes_ptr = nullptr;

inline int numa_max_node() { return 0; }
inline bitmask* numa_parse_nodestring(const char*) { return nullptr; }
inline void numa_bind(bitmask*) {}
inline void numa_set_preferred(int) {}
inline void numa_set_interleave_mask(bitmask*) {}

#endif  // PROPHET_ENGINE_NUMA_H_
