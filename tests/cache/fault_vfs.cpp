// SPDX-License-Identifier: Apache-2.0
#include "fault_vfs.h"

#include <sqlite3.h>

#include <cstring>

namespace fault {
namespace {

struct State {
  sqlite3_vfs* real = nullptr;
  sqlite3_vfs vfs{};
  std::atomic<unsigned> operations{0};
  std::atomic<long> countdown{0};
  std::atomic<int> code{0};
  std::atomic<bool> sticky{false}, fired{false};
};
State state;

struct File {
  sqlite3_file base;
  sqlite3_file* real;  // behind this struct
};
sqlite3_file* real(sqlite3_file* file) { return reinterpret_cast<File*>(file)->real; }

// The code to fail with, or 0.
int fault(Operation operation) {
  if (!(state.operations & operation)) return 0;
  const long left = state.countdown--;
  if (left > 0 || (left < 0 && !state.sticky)) return 0;
  state.fired = true;
  return state.code;
}

#define FORWARD(operation, call)                      \
  if (const int code = fault(operation)) return code; \
  return real(f)->pMethods->call

int read(sqlite3_file* f, void* p, int n, sqlite3_int64 at) {
  if (const int code = fault(kRead)) {
    // A short read fills the rest with zeros, because SQLite goes on with whatever the buffer holds.
    if (code == SQLITE_IOERR_SHORT_READ) std::memset(p, 0, static_cast<std::size_t>(n));
    return code;
  }
  return real(f)->pMethods->xRead(real(f), p, n, at);
}
int write(sqlite3_file* f, const void* p, int n, sqlite3_int64 at) { FORWARD(kWrite, xWrite)(real(f), p, n, at); }
int truncate(sqlite3_file* f, sqlite3_int64 size) { FORWARD(kTruncate, xTruncate)(real(f), size); }
int sync(sqlite3_file* f, int flags) { FORWARD(kSync, xSync)(real(f), flags); }
int lock(sqlite3_file* f, int level) { FORWARD(kLock, xLock)(real(f), level); }
int shm_map(sqlite3_file* f, int page, int size, int extend, void volatile** p) {
  FORWARD(kShmMap, xShmMap)(real(f), page, size, extend, p);
}
int shm_lock(sqlite3_file* f, int offset, int n, int flags) {
  // Unlocking never fails in a real system.
  if (flags & SQLITE_SHM_UNLOCK) return real(f)->pMethods->xShmLock(real(f), offset, n, flags);
  FORWARD(kShmLock, xShmLock)(real(f), offset, n, flags);
}
#undef FORWARD

int close(sqlite3_file* f) { return real(f)->pMethods->xClose(real(f)); }
int file_size(sqlite3_file* f, sqlite3_int64* size) { return real(f)->pMethods->xFileSize(real(f), size); }
int unlock(sqlite3_file* f, int level) { return real(f)->pMethods->xUnlock(real(f), level); }
int reserved(sqlite3_file* f, int* out) { return real(f)->pMethods->xCheckReservedLock(real(f), out); }
int control(sqlite3_file* f, int op, void* arg) { return real(f)->pMethods->xFileControl(real(f), op, arg); }
int sector(sqlite3_file* f) { return real(f)->pMethods->xSectorSize(real(f)); }
int traits(sqlite3_file* f) { return real(f)->pMethods->xDeviceCharacteristics(real(f)); }
void shm_barrier(sqlite3_file* f) { real(f)->pMethods->xShmBarrier(real(f)); }
int shm_unmap(sqlite3_file* f, int remove) { return real(f)->pMethods->xShmUnmap(real(f), remove); }

const sqlite3_io_methods kMethods = {2,        close,       read,      write,   truncate, sync,   file_size,
                                     lock,     unlock,      reserved,  control, sector,   traits, shm_map,
                                     shm_lock, shm_barrier, shm_unmap, nullptr, nullptr};

int open(sqlite3_vfs*, const char* name, sqlite3_file* f, int flags, int* out) {
  auto* file = reinterpret_cast<File*>(f);
  file->base.pMethods = nullptr;
  file->real = reinterpret_cast<sqlite3_file*>(file + 1);
  if (const int code = fault(kOpen)) return code;
  const int rc = state.real->xOpen(state.real, name, file->real, flags, out);
  if (file->real->pMethods) file->base.pMethods = &kMethods;
  return rc;
}

}  // namespace

Vfs::Vfs() {
  disarm();
  state.real = sqlite3_vfs_find(nullptr);
  state.vfs = *state.real;  // everything that is not about an open file is the real VFS's
  state.vfs.zName = "fault";
  state.vfs.pNext = nullptr;
  state.vfs.szOsFile = static_cast<int>(sizeof(File)) + state.real->szOsFile;
  state.vfs.xOpen = open;
  sqlite3_vfs_register(&state.vfs, 1);
}

Vfs::~Vfs() {
  disarm();
  sqlite3_vfs_unregister(&state.vfs);
  sqlite3_vfs_register(state.real, 1);
}

void Vfs::arm(unsigned operations, long n, int code, bool sticky) {
  state.fired = false;
  state.countdown = n;
  state.code = code;
  state.sticky = sticky;
  state.operations = operations;
}

void Vfs::disarm() { state.operations = 0; }
bool Vfs::fired() const { return state.fired; }

}  // namespace fault
