// Handles our descriptors and threads when the process forks, as DataLoader workers do.
//
// A child that keeps a copy of a connection keeps it open: the peers of a killed rank would not
// notice its end while its workers live. So children lose guarded descriptors at once; their
// numbers stay taken, by /dev/null, since the child's objects believe to own them.
#pragma once

namespace dmlcomm {

// Children forked from now on do not get `fd`. It is forgotten when its UniqueFd closes it.
void drop_in_children(int fd);
void forget_descriptor(int fd);

// How many forks lie between this process and the one that loaded dmlcomm. Threads do not survive a
// fork: an object that was made in another generation has lost its own.
int fork_generation();

}  // namespace dmlcomm
