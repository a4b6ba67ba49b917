package configs

import (
	"fmt"
	"slices"
	"strings"
)

// Mechanism is a set of mechanisms, or the bit of a single one. The segment shows others which ones are in force.
type Mechanism uint32

// The mechanisms; MechanismRows has a row for each.
const (
	Timeslice Mechanism = 1 << iota
	Hold
	Gate
	Turns
	BLP
	MPS
	Swap
)

// Where says on which GPUs a mechanism is used: where a process is apart from others, with TSGs of its own, where it is
// under an MPS server, or both.
type Where uint32

// Sets of places.
const (
	Apart Where = 1 << iota
	UnderMPS
	Nowhere  Where = 0
	Anywhere       = Apart | UnderMPS
)

// MPSDirectories are where control daemons of MPS have their sockets unless CUDA_MPS_PIPE_DIRECTORY names a directory: first that of v3
// where root runs the daemon, then that of v2, and of v3 where others do (NVIDIA's documentation of MPS, release 615).
var MPSDirectories = [...]string{"/run/nvidia-mps", "/tmp/nvidia-mps"}

// MechanismRow is all that is said of a mechanism outside of the code that carries it out. The values and messages of the key mechanisms,
// the bits in the segment and their names come from it. So do default.toml (go generate ./configs), gpreempt doctor and gpreempt top.
type MechanismRow struct {
	Bit   Mechanism
	Name  string
	Works Where  // where it can be used
	Auto  Where  // where "auto" uses it
	Rate  string // the counter of segment.Counters that gpreempt top shows per second; "" for none
	Does  string
}

// MechanismRows has a row for each mechanism, in the order of the bits.
var MechanismRows = [...]MechanismRow{
	{Timeslice, "timeslice", Apart, Apart, "",
		"the timeslice of each process's TSG follows its level, so the GPU switches by itself"},
	{Hold, "hold", Apart, Apart, "holds",
		"tiny kernels keep the GPU with a latency-critical (LC) process between its kernels"},
	{Gate, "gate", Anywhere, UnderMPS, "gate_waits",
		"launches of lower levels wait on the host while an LC window is open"},
	{Turns, "turns", Apart, Apart, "turns",
		"best-effort (BE) processes of one GPU run one after another"},
	{BLP, "blp", Anywhere, UnderMPS, "",
		"BE kernels are rewritten as they are loaded, so that they can stop between blocks and go on later (block-level preemption)"},
	{MPS, "mps", UnderMPS, UnderMPS, "",
		"where all processes share the one TSG of an MPS server, streams of LC processes get the highest and those of BE processes the lowest priority"},
	{Swap, "swap", Anywhere, Apart, "",
		"device memory of BE processes goes to host memory and comes back, so that programs run together which do not fit together"},
}

// MechanismNames are the names in the order of the bits.
func MechanismNames() (names []string) {
	for _, row := range MechanismRows {
		names = append(names, row.Name)
	}
	return names
}

// Mechanisms says which may be used to preempt: those that "auto" picks, or named ones.
type Mechanisms struct {
	Auto  bool
	Named Mechanism
}

// Where says where a mechanism is used, if nothing is found to be in its way.
func (m Mechanisms) Where(one Mechanism) Where {
	for _, row := range MechanismRows {
		switch {
		case row.Bit != one:
		case m.Auto:
			return row.Auto
		case m.Named&one != 0:
			return row.Works
		}
	}
	return Nowhere
}

// Use says whether a mechanism is used anywhere.
func (m Mechanisms) Use(one Mechanism) bool { return m.Where(one) != Nowhere }

// UseAt says whether a mechanism is used where a process is under an MPS server, or apart.
func (m Mechanisms) UseAt(one Mechanism, underMPS bool) bool {
	if underMPS {
		return m.Where(one)&UnderMPS != 0
	}
	return m.Where(one)&Apart != 0
}

// Swaps says whether device memory of a process of a level comes and goes, if nothing is found to be in its way. "auto" moves that of
// best-effort processes, and of others where memory.lc says so.
func (c Config) Swaps(level int) bool {
	return c.Mechanisms.Use(Swap) && (!c.Mechanisms.Auto || level == Levels-1 || c.Memory.LC)
}

func mechanismsAllowed() string {
	return `"auto" or an array of "` + strings.Join(MechanismNames(), `", "`) + `"`
}

func setMechanisms(c *Config, value any) bool {
	if value == "auto" {
		c.Mechanisms = Mechanisms{Auto: true}
		return true
	}
	names, ok := value.([]any)
	if !ok {
		return false
	}
	var named Mechanism
	for _, name := range names {
		i := slices.Index(MechanismNames(), fmt.Sprint(name))
		if i < 0 {
			return false
		}
		named |= MechanismRows[i].Bit
	}
	c.Mechanisms = Mechanisms{Named: named}
	return true
}

// Fallback is a set of reasons why mechanisms are not in force, or the bit of a single one. The segment shows it to others.
type Fallback uint32

// The fallbacks; FallbackRows has a row for each.
const (
	FallbackControlRefused Fallback = 1 << iota
	FallbackNoTSG
	FallbackNoHold
	FallbackMPS
	FallbackSuspendRefused
	FallbackNoVMM
	FallbackNoHostMemory
	FallbackOthers
	FallbackRegistered
	FallbackSeveralGPUs
	FallbackLocked
	FallbackServer
	FallbackPolicy
)

// FallbackRow is all that is said of a fallback outside of the code that finds it.
type FallbackRow struct {
	Bit    Fallback
	Name   string
	Of     Mechanism // what is not in force because of it
	Why    string
	Advice string
}

// FallbackRows has a row for each fallback, in the order of the bits.
var FallbackRows = [...]FallbackRow{
	{FallbackControlRefused, "control_refused", Timeslice | Turns, "the driver refused an RM control",
		`this may be a sandbox; set mechanisms = ["gate", "blp"], which need none`},
	{FallbackNoTSG, "no_tsg", Timeslice, "no compute TSG was seen", ""},
	{FallbackNoHold, "no_hold", Hold, "the hold kernel cannot be used, which the library's log explains", ""},
	{FallbackMPS, "mps", Timeslice | Hold | Turns, "all processes share the one TSG of an MPS server", ""},
	{FallbackSuspendRefused, "suspend_refused", Turns, "the driver refused to disable channels", ""},
	{FallbackNoVMM, "no_vmm", Swap, "the driver or the GPU lacks virtual memory management", "memory stays as the driver has it; a driver of CUDA 11.2 or newer has it"},
	{FallbackNoHostMemory, "no_host_memory", Swap, "no host memory can be page-locked", "give the process more memory (a limit of its cgroup?), or less to memory.host_mb of others"},
	{FallbackOthers, "others", Timeslice, "processes without gpreempt have work on the GPU: best-effort programs have the fair timeslice, so that they get on beside those",
		"start them by gpreempt run --priority be"},
	{FallbackRegistered, "registered", Swap, "this machine has devices (RDMA adapters, GPUDirect Storage, GDRCopy) with which a program may register its memory unseen: \"auto\" does not move it",
		"where programs do not let such a device into their GPU memory, name swap in mechanisms"},
	{FallbackSeveralGPUs, "several_gpus", Swap, "this program has several GPUs, and copies between them that need no peer access might be refused: \"auto\" does not move its memory",
		"let it see the GPU that it uses (CUDA_VISIBLE_DEVICES), or, where it enables peer access or uses NCCL, name swap in mechanisms"},
	{FallbackLocked, "locked", Timeslice | Hold | Turns | BLP, "the driver has locked or checkpointed this process (cuCheckpointProcessLock, cuda-checkpoint)",
		"it takes part again when it is unlocked"},
	{FallbackServer, "mps_server", Swap, "a control daemon of MPS is there, although this process has a TSG of its own: \"auto\" decides before the driver connects, and does not move its memory",
		"name swap in mechanisms, or remove the daemon's socket"},
	{FallbackPolicy, "compute_policy", Timeslice, "nvidia-smi compute-policy sets timeslices, and gpreempt's take their place",
		"to have those, leave timeslice, hold and turns out of mechanisms; else set the policy back: nvidia-smi compute-policy --set-timeslice=0"},
}

// FallbackNames are the names in the order of the bits.
func FallbackNames() (names []string) {
	for _, row := range FallbackRows {
		names = append(names, row.Name)
	}
	return names
}
