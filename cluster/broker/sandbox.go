package broker

import (
	"github.com/gpreempt/gpreempt/cluster/broker/policy"
)

// A uid alone says little: root of a container is the uid that root of the host is, and that root of the next container is. A process is
// known by its uid, its sandbox, and the socket by which it came. A sandbox is its container, its PID namespace and its user namespace.
//
// Processes are *of* another one if that one could stop them by a signal: they have its uid, and it sees them. A user's rights over
// its own processes end at the sandbox. A process in none (the broker's own namespaces, no container) sees those in all of them.

// owner is whose something is that is counted: a user's, or a container's, in which most processes are root's.
type owner struct {
	uid       uint32
	container string // "": none, or not known yet
}

func (who *identity) owner() owner { return owner{who.uid, containerOf(who.cgroup)} }

// isHost says whether a process is in no sandbox.
func (who *identity) isHost() bool {
	return len(who.nested) == 1 && who.users.own && containerOf(who.cgroup) == ""
}

// sees says whether the target is in the sandbox of the asker. A namespace that cannot be told is not the same.
func (asker *identity) sees(target *identity) bool {
	if asker.isHost() {
		return true
	}
	container := containerOf(asker.cgroup)
	if container != "" && container != containerOf(target.cgroup) {
		return false
	}
	if !asker.users.own && !asker.users.same(target.users) {
		return false
	}
	if pidFor(asker, target) != 0 {
		return true
	}
	// A broker without rights cannot tell PID namespaces apart. Processes of a container that are in namespaces of equal depth have one.
	return container != "" && asker.space == "" && len(asker.nested) == len(target.nested)
}

// has says whether the target is one of the asker's own processes.
func (asker *identity) has(target *identity) bool {
	return asker.uid == target.uid && asker.sees(target)
}

const stranger = 65534 // as the kernel shows users of other namespaces

// abroad is how conditions about processes that are not its own see an asker: its uid, gid and groups are worth nothing outside its
// sandbox, and root without CAP_SYS_ADMIN is not root.
func abroad(who *identity, f policy.Facts) policy.Facts {
	if !who.isHost() || who.uid == 0 && !who.admin {
		f.UID, f.GID, f.Groups = stranger, stranger, nil
	}
	return f
}
