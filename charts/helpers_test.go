package charts

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
)

func scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

const patience = time.Minute

// converter waits until the types have been read.
func (m *mutating) converter(t *testing.T, kind schema.GroupVersionKind) managedfields.TypeConverter {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if c := m.types.GetTypeConverter(kind); c != nil {
			return c
		}
	}
	t.Fatalf("no types of %v", kind)
	return nil
}

// SecurityContextConstraints are OpenShift's (security.openshift.io/v1), as far as the chart has them.
type SecurityContextConstraints struct {
	metav1.TypeMeta          `json:",inline"`
	metav1.ObjectMeta        `json:"metadata"`
	AllowHostDirVolumePlugin bool                `json:"allowHostDirVolumePlugin"`
	AllowHostPID             bool                `json:"allowHostPID"`
	AllowHostIPC             bool                `json:"allowHostIPC"`
	AllowHostNetwork         bool                `json:"allowHostNetwork"`
	AllowHostPorts           bool                `json:"allowHostPorts"`
	AllowPrivilegedContainer bool                `json:"allowPrivilegedContainer"`
	AllowPrivilegeEscalation *bool               `json:"allowPrivilegeEscalation"`
	AllowedCapabilities      []corev1.Capability `json:"allowedCapabilities"`
	DefaultAddCapabilities   []corev1.Capability `json:"defaultAddCapabilities"`
	RequiredDropCapabilities []corev1.Capability `json:"requiredDropCapabilities"`
	ReadOnlyRootFilesystem   bool                `json:"readOnlyRootFilesystem"`
	RunAsUser                strategy            `json:"runAsUser"`
	FSGroup                  strategy            `json:"fsGroup"`
	SupplementalGroups       strategy            `json:"supplementalGroups"`
	SELinuxContext           struct {
		Type           string                 `json:"type"`
		SELinuxOptions *corev1.SELinuxOptions `json:"seLinuxOptions"`
	} `json:"seLinuxContext"`
	SeccompProfiles []string `json:"seccompProfiles"`
	Volumes         []string `json:"volumes"`
	Users           []string `json:"users"`
}

type strategy struct {
	Type string `json:"type"`
}
