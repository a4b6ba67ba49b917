// Package policy says what a client of the broker may do: rules in TOML, with conditions in CEL.
package policy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/interpreter"

	"github.com/gpreempt/gpreempt/broker/wire"
	"github.com/gpreempt/gpreempt/configs"
)

// Levels is how many there are; 0 is the highest (lc), Levels-1 the lowest (be).
const Levels = 8

// Facts are what is known of a client. Only Wanted comes from the client itself. An unknown fact is empty.
type Facts struct {
	UID, GID    uint32
	Groups      []uint32
	Cgroup      string
	Container   string
	Namespace   string
	Pod         string
	Annotations map[string]string
	GPU         string
	Host        bool // in no container, PID namespace or user namespace of its own.
	Socket      int  // the best level of the socket by which it came
	Wanted      int  // the level that it asked for
}

// Grant is what a client gets.
type Grant struct {
	Rule      string
	Admit     bool
	Off       bool // if it is not admitted: it has no role, rather than being best effort
	Level     int  // the best that it may have
	Per       wire.Per
	Share     float64 // of the GPU's time, at least; 0: the client's own setting
	ShareMax  float64 // at most, of one that is best effort; 0: the client's own setting
	MaxHoldMs uint32  // 0: the client's own setting
	Memory    configs.MemoryLimit
	Objective configs.ObjectiveWord
}

// Quota bounds what one user, or one cgroup, may have.
type Quota struct {
	MembersPerUID, MembersPerCgroup         int // of one GPU
	ConnectionsPerUID, ConnectionsPerCgroup int
	MessagesPerSecond                       int // of one client
	MessagesPerUID                          int // a second, of all clients; of a container it is all of it
}

// Policy is what one file says.
type Policy struct {
	Path         string // "": none
	Quota        Quota
	QuantumMs    uint32 // of turns
	MemoryLateMs uint32 // after so long a memory turn may be taken from its owner
	text         string
	fallback     Grant
	rules        []rule
	control      cel.Program // nil: everybody may change its own
}

type rule struct {
	grant Grant
	when  cel.Program
}

const (
	// Evaluating a condition stops at this cost, in CEL's units: some hundred microseconds.
	mostCost = 20_000
	// Facts of a client that could grow are cut to this, in bytes.
	mostFact  = 4096
	mostBytes = 1 << 20 // of a file
	defaults  = `# No policy file: everybody is best effort.
[default]
level = "be"
`
)

// Default is the policy where there is no file: everybody may be best effort.
func Default() *Policy {
	p, err := Parse("default", []byte(defaults))
	if err != nil {
		panic(err) // a constant, and a test reads it
	}
	p.Path = ""
	return p
}

// Load reads a file. An error is one line for each mistake, with file, key, value, and what is allowed.
func Load(path string) (*Policy, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > mostBytes {
		return nil, &fs.PathError{Op: "read policy", Path: path, Err: fmt.Errorf("must be a regular file of at most %d bytes", mostBytes)}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read policy: %w", err)
	}
	return Parse(path, data)
}

// String is the policy as written in its file.
func (p *Policy) String() string { return p.text }

// Grant is what the first rule gives whose condition holds. An error names rules whose condition could not be evaluated, which count as not
// holding; the grant is valid all the same. Where a condition takes too long nothing is granted: a client may have so many groups that a
// rule fails which takes something away.
func (p *Policy) Grant(f Facts) (Grant, error) {
	var errs []error
	values := known{&f, ""}
	for _, r := range p.rules {
		holds, err := eval(r.when, values)
		if err != nil {
			errs = append(errs, fmt.Errorf("rule %q: %w", r.grant.Rule, err))
		}
		var ended interpreter.EvalCancelledError
		if errors.As(err, &ended) {
			return Grant{Rule: r.grant.Rule, Level: Levels - 1}, errors.Join(errs...)
		}
		if holds {
			return r.grant, errors.Join(errs...)
		}
	}
	return p.fallback, errors.Join(errs...)
}

// MaySet says whether the asker may change the target's settings, within its rule. own says that the client is one of the asker's own
// processes. Without [control] the asker may change these and no others.
func (p *Policy) MaySet(asker, target Facts, own bool) (bool, error) {
	if p.control == nil {
		return own, nil
	}
	return eval(p.control, both{known{&asker, "asker."}, known{&target, "target."}, own})
}

// variable is a fact as conditions know it.
type variable struct {
	name  string
	kind  *cel.Type
	value func(f *Facts) any
}

var variables = []variable{
	{"uid", cel.IntType, func(f *Facts) any { return int64(f.UID) }},
	{"gid", cel.IntType, func(f *Facts) any { return int64(f.GID) }},
	{"groups", cel.ListType(cel.IntType), func(f *Facts) any {
		list := make([]int64, 0, len(f.Groups))
		for _, g := range f.Groups {
			list = append(list, int64(g))
		}
		return list
	}},
	{"cgroup", cel.StringType, func(f *Facts) any { return cut(f.Cgroup) }},
	{"container", cel.StringType, func(f *Facts) any { return cut(f.Container) }},
	{"pod_namespace", cel.StringType, func(f *Facts) any { return cut(f.Namespace) }},
	{"pod", cel.StringType, func(f *Facts) any { return cut(f.Pod) }},
	{"annotations", cel.MapType(cel.StringType, cel.StringType), func(f *Facts) any {
		all := make(map[string]string, len(f.Annotations))
		for key, value := range f.Annotations {
			all[key] = cut(value)
		}
		return all
	}},
	{"gpu", cel.StringType, func(f *Facts) any { return f.GPU }},
	{"host", cel.BoolType, func(f *Facts) any { return f.Host }},
	{"socket", cel.IntType, func(f *Facts) any { return int64(f.Socket) }},
	{"wanted", cel.IntType, func(f *Facts) any { return int64(f.Wanted) }},
}

func cut(text string) string { return text[:min(len(text), mostFact)] }

// known are facts, as a condition asks for them. A fact that no condition names costs nothing.
type known struct {
	of     *Facts
	prefix string
}

// ResolveName is of interpreter.Activation.
func (k known) ResolveName(name string) (any, bool) {
	rest, is := strings.CutPrefix(name, k.prefix)
	i := slices.IndexFunc(variables, func(v variable) bool { return v.name == rest })
	if !is || i < 0 {
		return nil, false
	}
	return variables[i].value(k.of), true
}

// Parent is of interpreter.Activation.
func (known) Parent() interpreter.Activation { return nil }

// both are the facts that [control] asks for.
type both struct {
	asker, target known
	own           bool
}

// ResolveName is of interpreter.Activation.
func (b both) ResolveName(name string) (any, bool) {
	if name == ownName {
		return b.own, true
	}
	if value, is := b.asker.ResolveName(name); is {
		return value, true
	}
	return b.target.ResolveName(name)
}

// Parent is of interpreter.Activation.
func (both) Parent() interpreter.Activation { return nil }

const ownName = "own"

func environment(prefixes ...string) *cel.Env {
	options := []cel.EnvOption{}
	if len(prefixes) > 1 {
		options = append(options, cel.Variable(ownName, cel.BoolType))
	}
	for _, prefix := range prefixes {
		for _, v := range variables {
			options = append(options, cel.Variable(prefix+v.name, v.kind))
		}
	}
	env, err := cel.NewEnv(options...)
	if err != nil {
		panic(err) // the variables above; a test makes both
	}
	return env
}

// compile makes a condition. Its errors are of one line.
func compile(env *cel.Env, condition string) (cel.Program, error) {
	ast, issues := env.Compile(condition)
	if err := issues.Err(); err != nil {
		var messages []string
		for _, e := range issues.Errors() {
			messages = append(messages, fmt.Sprintf("column %d: %s", e.Location.Column()+1, strings.ReplaceAll(e.Message, "\n", " ")))
		}
		return nil, errors.New(strings.Join(messages, "; ") + "; equality is ==, and text stands in quotes: docs/broker.md, The policy")
	}
	if !ast.OutputType().IsExactType(cel.BoolType) {
		return nil, fmt.Errorf("is %s, must be bool", ast.OutputType())
	}
	return env.Program(ast, cel.CostLimit(mostCost))
}

func eval(condition cel.Program, values interpreter.Activation) (bool, error) {
	result, _, err := condition.Eval(values)
	if err != nil {
		return false, err
	}
	holds, ok := result.Value().(bool)
	return ok && holds, nil
}
