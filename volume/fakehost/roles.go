package fakehost

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/kubeapi"
)

// RoleCall is one call of a role's method. It is comparable.
type RoleCall struct {
	// Method is the method's name: GetSecret, GetConfigMap, RequestToken,
	// GetTrustBundle, GetTrustBundlesBySigner, RequestPodCertificate,
	// AwaitPodCertificate, GetEndpointAddresses, GetAllocatable, Stat, MakeDir, MakeFile, SetOwnership or
	// VerifyReleased; or one of the caller of DoRole.
	Method string
	// Namespace and Name say what was asked for: an object, a service
	// account, a request, or as Name a signer or a path.
	Namespace, Name string
}

// RoleFault is an injected fault of a role.
type RoleFault = fault.Fault[RoleCall]

// InjectRole adds faults to the roles' calls, events excepted, which can
// neither block nor fail. It returns the function that takes them away again.
func (h *Host) InjectRole(faults ...RoleFault) (remove func()) { return h.faults.Inject(faults...) }

// RoleCalls returns the roles' calls, oldest first, failed ones included and
// events excepted.
func (h *Host) RoleCalls() []RoleCall { return h.faults.Calls() }

// DoRole runs a call of a role that is the caller's own, as one of the host's own: it
// meets injected faults and is among RoleCalls.
func (h *Host) DoRole(ctx context.Context, call RoleCall, effect func() error) error {
	return h.faults.Do(ctx, call, effect)
}

// ResetRoleCalls empties the log of RoleCalls.
func (h *Host) ResetRoleCalls() { h.faults.ResetCalls() }

// The roles, each a type of its own, so that setting a field of the Host to nil
// takes just that role away.
type (
	secretRole      struct{ host *Host }
	configMapRole   struct{ host *Host }
	endpointsRole   struct{ host *Host }
	trustBundleRole struct{ host *Host }
	tokenRole       struct{ host *Host }
	allocatableRole struct{ host *Host }
)

// serial counts tokens.
type serial struct{ atomic.Int64 }

// releaseRole lets everything be destroyed.
type releaseRole struct{ host *Host }

// VerifyReleased implements [volume.ReleaseVerifier].
func (r releaseRole) VerifyReleased(ctx context.Context, pv *v1.PersistentVolume) error {
	return r.host.faults.Do(ctx, RoleCall{Method: "VerifyReleased", Name: pv.Name}, func() error { return nil })
}

// VerifyUnused implements [volume.UnusedVerifier].
func (r releaseRole) VerifyUnused(ctx context.Context, pv *v1.PersistentVolume) error {
	return r.host.faults.Do(ctx, RoleCall{Method: "VerifyUnused", Name: pv.Name}, func() error { return nil })
}

func answer[T any](ctx context.Context, h *Host, call RoleCall, effect func() (T, error)) (T, error) {
	var result T
	err := h.faults.Do(ctx, call, func() (err error) {
		result, err = effect()
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return result, nil
}

func (r secretRole) GetSecret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return answer(ctx, r.host, RoleCall{"GetSecret", namespace, name}, func() (*v1.Secret, error) {
		return get[*v1.Secret](r.host.objects, "Secret", namespace, name)
	})
}

func (r configMapRole) GetConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error) {
	return answer(ctx, r.host, RoleCall{"GetConfigMap", namespace, name}, func() (*v1.ConfigMap, error) {
		return get[*v1.ConfigMap](r.host.objects, "ConfigMap", namespace, name)
	})
}

func (r endpointsRole) GetEndpointAddresses(ctx context.Context, namespace, name string) ([]string, error) {
	return answer(ctx, r.host, RoleCall{"GetEndpointAddresses", namespace, name}, func() ([]string, error) {
		found, err := get[*kubeapi.Endpoints](r.host.objects, "Endpoints", namespace, name)
		if err != nil {
			return nil, err
		}
		return kubeapi.ReadyAddresses(found), nil
	})
}

func (r trustBundleRole) GetTrustBundle(ctx context.Context, name string) (string, error) {
	return answer(ctx, r.host, RoleCall{Method: "GetTrustBundle", Name: name}, func() (string, error) {
		object, err := get[runtime.Object](r.host.objects, "ClusterTrustBundle", "", name)
		if err != nil {
			return "", err
		}
		bundle, _ := kubeapi.TrustBundleOf(object)
		return bundle.PEM, nil
	})
}

func (r trustBundleRole) GetTrustBundlesBySigner(ctx context.Context, signer string, selector *metav1.LabelSelector) (string, error) {
	return answer(ctx, r.host, RoleCall{Method: "GetTrustBundlesBySigner", Name: signer}, func() (string, error) {
		selected, err := metav1.LabelSelectorAsSelector(selector)
		if err != nil {
			return "", err
		}
		return r.host.objects.bundlesOf(signer, selected), nil
	})
}

// bundlesOf joins the bundles in the order of their names, equal ones once.
func (m *objectMap) bundlesOf(signer string, selector labels.Selector) string {
	bundles := m.trustBundles()
	slices.SortFunc(bundles, func(a, b kubeapi.TrustBundle) int { return cmp.Compare(a.Name, b.Name) })
	var pems []string
	for _, b := range bundles {
		if b.SignerName == signer && selector.Matches(labels.Set(b.Labels)) && !slices.Contains(pems, b.PEM) {
			pems = append(pems, b.PEM)
		}
	}
	return strings.Join(pems, "")
}

func (r allocatableRole) GetAllocatable(ctx context.Context) (v1.ResourceList, error) {
	return answer(ctx, r.host, RoleCall{Method: "GetAllocatable"}, func() (v1.ResourceList, error) {
		return r.host.NodeAllocatable.DeepCopy(), nil
	})
}

// defaultExpiration is that of Kubernetes.
const defaultExpiration int64 = 3600

// RequestToken issues an unsigned JWT, each with another id.
func (r tokenRole) RequestToken(ctx context.Context, namespace, serviceAccount string, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return answer(ctx, r.host, RoleCall{"RequestToken", namespace, serviceAccount}, func() (*authenticationv1.TokenRequest, error) {
		issued := request.DeepCopy()
		seconds := defaultExpiration
		if issued.Spec.ExpirationSeconds != nil {
			seconds = *issued.Spec.ExpirationSeconds
		}
		now := r.host.Now()
		expires := now.Add(time.Duration(seconds) * time.Second)
		token, err := unsignedJWT(map[string]any{
			"aud": issued.Spec.Audiences,
			"exp": expires.Unix(),
			"iat": now.Unix(),
			"iss": "fakehost",
			"jti": fmt.Sprintf("token-%d", r.host.tokens.Add(1)),
			"sub": "system:serviceaccount:" + namespace + ":" + serviceAccount,
		})
		issued.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(expires)}
		return issued, err
	})
}

func unsignedJWT(claims map[string]any) (string, error) {
	payload, err := json.Marshal(claims)
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode(payload) + ".", err
}
