// sockets.h - what the intercepted reads and polls of libc tell the source of hints that watches sockets.
#ifndef GPREEMPT_SOCKETS_H
#define GPREEMPT_SOCKETS_H

#include <stdbool.h>

struct gp_socket_hooks {
	// Something was read from a descriptor, of whatever kind, or may be (ready). errno may be changed.
	void (*readable)(int fd, bool ready);
	// A descriptor is about to be closed or replaced, or just was.
	void (*closed)(int fd);
	// A descriptor is a new connection's, made by a client of this process.
	void (*accepted)(int fd);
};

#endif
