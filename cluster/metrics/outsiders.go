package metrics

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// User is a process on a GPU, as NVIDIA's management library says.
type User struct {
	PID   int
	Bytes uint64 // of device memory; 0: not known
	Works bool   // had work lately, or it is not known
}

// Outsiders is a prometheus.Collector of the processes on GPUs that are not among those under the library. Its methods may be called by several
// goroutines.
type Outsiders struct {
	members func() map[int]bool // PIDs
	descs   [3]*prometheus.Desc
	mutex   sync.Mutex
	users   map[string][]User // by the UUID of the GPU; nil: not known
}

var outsiderRows = []Description{
	{"outsiders", string(gauge), "", "Processes on the GPU that are not among those under the library.", []string{"uuid"}},
	{"outsiders_working", string(gauge), "", "Of these, those that had work on the GPU lately.", []string{"uuid"}},
	{"outsiders_memory_bytes", string(gauge), "bytes", "Device memory of these.", []string{"uuid"}},
}

// NewOutsiders makes one. members says which processes are under the library.
func NewOutsiders(members func() map[int]bool) *Outsiders {
	o := &Outsiders{members: members}
	for i, r := range outsiderRows {
		o.descs[i] = prometheus.NewDesc(Prefix+r.Name, r.Help, r.Labels, nil)
	}
	return o
}

// Set says who is on which GPU; nil: that is not known, and there are no series.
func (o *Outsiders) Set(users map[string][]User) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.users = users
}

// Describe is prometheus.Collector's.
func (o *Outsiders) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range o.descs {
		to <- desc
	}
}

// Collect is prometheus.Collector's.
func (o *Outsiders) Collect(to chan<- prometheus.Metric) {
	o.mutex.Lock()
	users := o.users
	o.mutex.Unlock()
	if users == nil {
		return
	}
	members := o.members()
	for gpu, all := range users {
		n, working, bytes := 0, 0, uint64(0)
		for _, u := range once(all) {
			if !members[u.PID] {
				n++
				working += int(yes(u.Works))
				bytes = plus(bytes, u.Bytes)
			}
		}
		for i, value := range []float64{float64(n), float64(working), float64(bytes)} {
			to <- prometheus.MustNewConstMetric(o.descs[i], prometheus.GaugeValue, value, label(gpu))
		}
	}
}

// once has each process once: the library may list one for compute and for graphics.
func once(all []User) []User {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b User) int { return cmp.Compare(a.PID, b.PID) })
	return slices.CompactFunc(all, func(a, b User) bool { return a.PID != 0 && a.PID == b.PID })
}

func outsiderDescriptions() (all []Description) {
	for _, r := range outsiderRows {
		r.Name, r.Help = Prefix+r.Name, strings.TrimSuffix(r.Help, ".")
		all = append(all, r)
	}
	return all
}
