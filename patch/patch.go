// Package patch rewrites compiled CUDA kernels so that their blocks can be stopped: every kernel of a
// cubin gets a prologue, the guard, and a hidden last parameter that the guard reads. It knows the
// containers (fatbin, ELF) and nothing of the CUDA API; images are untrusted input.
//
// A kernel's code moves as a whole, by the guard's length: references within it that are relative stay valid, and
// references by offset move along. A kernel for which this cannot be shown is refused, with the reason, and does not change.
package patch

import (
	"fmt"
	"strings"
)

// DefaultMaxSize is the default of Options.MaxSize, in bytes.
const DefaultMaxSize = 1 << 30

// Options says how to rewrite.
type Options struct {
	Guards *Guards

	// MaxSize bounds the result and every image that is unpacked on the way, in bytes.
	MaxSize int

	// Refuse, if set, returns why the kernel of a (mangled) name must not be rewritten; "" if it may.
	Refuse func(kernel string) (reason string)

	differs map[kernelOfFamily]bool // kernels that Rewrite refuses
}

// kernelOfFamily names a kernel in the cubins for GPUs of one major compute capability.
type kernelOfFamily struct {
	family int
	kernel string
}

func (o Options) maxSize() int {
	if o.MaxSize > 0 {
		return o.MaxSize
	}
	return DefaultMaxSize
}

// Kernel is the result for one kernel.
type Kernel struct {
	Name    string  `json:"name"`
	Guarded bool    `json:"guarded"`
	Reason  string  `json:"reason,omitempty"` // why it is not guarded
	Refusal Refusal `json:"-"`                // the kind of the reason

	Registers        int `json:"registers"`
	GuardedRegisters int `json:"guarded_registers,omitempty"`

	Parameters     int `json:"parameters"`      // of the original: how many
	ParameterBytes int `json:"parameter_bytes"` // of the original
	HiddenOffset   int `json:"hidden_offset,omitempty"`

	// Of a guarded kernel: as far as its code tells, no block waits for another one of its launch, but for those of a cluster; or what
	// speaks against it.
	Independent bool   `json:"independent"`
	Dependence  string `json:"dependence,omitempty"`

	Layout []Parameter `json:"-"` // the original's parameters, in order
}

// Refusal is why a kernel has no guard: enum gp_refusal of preempt/segment/segment.h.
type Refusal int

// Kinds of refusals.
const (
	RefusedForm  Refusal = iota // Its code, attributes or relocations have an unknown form.
	RefusedRoom                 // No room for a parameter or for the guard's registers.
	RefusedPeers                // Options.Refuse gave a reason.
	RefusedSM                   // No guard for its architecture.
)

// refusal is an error with a kind; other errors are RefusedForm.
type refusal struct {
	kind Refusal
	text string
}

func (r refusal) Error() string { return r.text }

func refused(kind Refusal, format string, values ...any) error {
	return refusal{kind, fmt.Sprintf(format, values...)}
}

// Parameter is where a kernel's parameter lies in the parameter buffer, in bytes.
type Parameter struct{ Offset, Size uint16 }

// Report is the result for one cubin.
type Report struct {
	SM      int      `json:"sm"`
	Kernels []Kernel `json:"kernels"`
}

// Guarded counts the kernels that have a guard.
func (r Report) Guarded() (count int) {
	for _, k := range r.Kernels {
		if k.Guarded {
			count++
		}
	}
	return count
}

// Cubin rewrites one ELF image. It returns a new image, or the given one if no kernel could be guarded. The new one is
// at most 1 KiB, and 4 KiB for every kernel, longer.
func Cubin(image []byte, options Options) (out []byte, report Report, err error) {
	defer recovered(func(failure error) { out, report, err = nil, Report{}, failure })
	return rewriteCubin(image, options)
}

// recovered turns a panic into an error: a fault of this package must not end the program that it is
// loaded into. No known image causes a panic; the fuzz targets call the functions without this net.
func recovered(fail func(error)) {
	if r := recover(); r != nil {
		fail(fmt.Errorf("%w: %v", ErrFormat, r))
	}
}

func rewriteCubin(image []byte, options Options) ([]byte, Report, error) {
	if len(image) > options.maxSize() {
		return nil, Report{}, ErrTooLarge
	}
	c, err := parseCubin(image)
	if err != nil {
		return nil, Report{}, err
	}
	report := Report{SM: c.sm}
	plans := c.plan(options)
	for _, p := range plans {
		report.Kernels = append(report.Kernels, p.Kernel)
	}
	if report.Guarded() == 0 {
		return image, report, nil
	}
	out, err := c.apply(plans, options)
	if err == nil {
		err = confirm(image, out, plans)
	}
	if err != nil {
		return nil, Report{}, err
	}
	return out, report, nil
}

// WaitsForPeers is an Options.Refuse for kernels of communication libraries. Their blocks wait for blocks with higher
// numbers, or on other GPUs, without being launched cooperatively: no block of such a kernel may be held back.
func WaitsForPeers(kernel string) (reason string) {
	for _, name := range []string{"ncclDevKernel", "ncclKernel", "ncclSymDevKernel", "ncclSymkDevKernel", "nvshmem", "mscclpp"} {
		if strings.Contains(kernel, name) {
			return "its blocks wait for one another (" + name + ")"
		}
	}
	return ""
}
