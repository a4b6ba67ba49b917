// socket_hooks.h - what the intercepted functions of libc tell the source of hints that watches sockets.
#ifndef GPREEMPT_SOCKET_HOOKS_H
#define GPREEMPT_SOCKET_HOOKS_H

#include <stdbool.h>

struct gp_socket_hooks {
	// Data was read from a descriptor of any kind, or can be (ready). May change errno.
	void (*readable)(int fd, bool ready);
	// A descriptor is about to be closed or replaced, or was.
	void (*closed)(int fd);
	// A client of this process has opened a connection, with this descriptor, to that socket.
	void (*accepted)(int fd, int listener);
};

#endif
