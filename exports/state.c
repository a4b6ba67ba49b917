// state.c - the state that all files of this folder read: whether the library is active, the installed hooks, a forked child.
#include "exports/layer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Atomic uint32_t gp_armed;
_Atomic(const struct gp_hooks *) gp_installed_hooks;
_Atomic(const struct gp_socket_hooks *) gp_installed_socket_hooks;
static atomic_bool forked;

enum { UNKNOWN, PASSIVE, ACTIVE };
static atomic_int mode;

// Other libraries' constructors may ask before ours ran, and before libc has an environment.
static COLD bool read_mode(void)
{
	if (!environ)
		return false;
	const char *priority = getenv("GPREEMPT_PRIORITY");
	bool active = priority && *priority && strcmp(priority, "off") != 0;
	atomic_store(&mode, active ? ACTIVE : PASSIVE);
	return active;
}

bool gp_active(void)
{
	int known = atomic_load_explicit(&mode, memory_order_relaxed);
	return likely(known != UNKNOWN) ? known == ACTIVE : read_mode();
}

void gp_complain(const char *what)
{
	const char *log = getenv("GPREEMPT_LOG");
	char line[128];
	if (!log || strncmp(log, "off", 3) != 0) {
		snprintf(line, sizeof line, "gpreempt: %s; running without preemption\n", what);
		gp_say(line, strlen(line)); // no thread would try again
	}
}

bool gp_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

void gp_pass_all(void)
{
	atomic_store(&forked, true);
	atomic_store(&gp_armed, 0);
	gp_drop_substitutes();
	atomic_store(&gp_installed_hooks, NULL);
	atomic_store(&gp_installed_socket_hooks, NULL);
}

// Functions that table.h does not have. One that puts work on streams past the hooks could overtake work that the core holds
// back. So the core's hook comes before the program gets the first of them.

static char unknown[64];
static atomic_int unknown_state; // 0: none, 1: being written, 2: written

static void tell_unknown(void)
{
	static atomic_bool told;
	const struct gp_hooks *hooks = gp_current_hooks();
	if (atomic_load(&unknown_state) == 2 && hooks && !atomic_exchange(&told, true))
		hooks->unknown_function(unknown);
}

COLD void gp_note_unknown(const char *name)
{
	int none = 0;
	if (atomic_compare_exchange_strong(&unknown_state, &none, 1)) {
		strncpy(unknown, name, sizeof unknown - 1);
		atomic_store(&unknown_state, 2);
	}
	tell_unknown();
}

// Streams that were made before the core could be told of them.
static atomic_bool untold;

static void tell_untold(void)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	if (hooks && atomic_exchange(&untold, false))
		hooks->stream_made(NULL);
}

void gp_note_stream(CUstream stream)
{
	const struct gp_hooks *hooks = gp_current_hooks();
	if (hooks)
		hooks->stream_made(stream);
	else
		atomic_store(&untold, true);
	tell_untold(); // the hooks may have come meanwhile
}

void gp_install_hooks(const struct gp_hooks *hooks)
{
	if (gp_forked())
		return;
	atomic_store_explicit(&gp_installed_hooks, hooks, memory_order_release);
	tell_unknown();
	tell_untold();
}

void gp_install_socket_hooks(const struct gp_socket_hooks *hooks)
{
	if (!gp_forked())
		atomic_store_explicit(&gp_installed_socket_hooks, hooks, memory_order_release);
}
