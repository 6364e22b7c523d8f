package containerenv_test

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/objects"
)

func service(namespace, name, ip string, ports ...v1.ServicePort) v1.Service {
	return v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: v1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

// The variables are those that a kubelet sets, for the services that the pod sees.
func TestServices(t *testing.T) {
	services := []v1.Service{
		service("shop", "redis-db", "10.0.0.7", v1.ServicePort{Name: "p-1", Port: 6379}, v1.ServicePort{Name: "gossip", Port: 53, Protocol: v1.ProtocolUDP}),
		service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Name: "https", Port: 443, Protocol: v1.ProtocolTCP}),
		service("shop", "six", "fd00::6", v1.ServicePort{Port: 80}),
		service("shop", "headless", v1.ClusterIPNone, v1.ServicePort{Port: 1}),
		service("shop", "without-ports", "10.0.0.9"),
		service("other", "theirs", "10.0.0.8", v1.ServicePort{Port: 1}),
	}
	const apiServer = `KUBERNETES_PORT=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443
KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1
KUBERNETES_PORT_443_TCP_PORT=443
KUBERNETES_PORT_443_TCP_PROTO=tcp
KUBERNETES_SERVICE_HOST=10.0.0.1
KUBERNETES_SERVICE_PORT=443
KUBERNETES_SERVICE_PORT_HTTPS=443`
	const linked = `REDIS_DB_PORT_53_UDP=udp://10.0.0.7:53
REDIS_DB_PORT_53_UDP_ADDR=10.0.0.7
REDIS_DB_PORT_53_UDP_PORT=53
REDIS_DB_PORT_53_UDP_PROTO=udp
REDIS_DB_PORT_6379_TCP=tcp://10.0.0.7:6379
REDIS_DB_PORT_6379_TCP_ADDR=10.0.0.7
REDIS_DB_PORT_6379_TCP_PORT=6379
REDIS_DB_PORT_6379_TCP_PROTO=tcp
REDIS_DB_SERVICE_HOST=10.0.0.7
REDIS_DB_SERVICE_PORT=6379
REDIS_DB_SERVICE_PORT_GOSSIP=53
REDIS_DB_SERVICE_PORT_P_1=6379
SIX_PORT=tcp://[fd00::6]:80
SIX_PORT_80_TCP=tcp://[fd00::6]:80
SIX_PORT_80_TCP_ADDR=fd00::6
SIX_PORT_80_TCP_PORT=80
SIX_PORT_80_TCP_PROTO=tcp
SIX_SERVICE_HOST=fd00::6
SIX_SERVICE_PORT=80
WITHOUT_PORTS_SERVICE_HOST=10.0.0.9`
	container := v1.Container{Name: "c", Env: []v1.EnvVar{
		{Name: "REDIS_DB_PORT", Value: "mine"},
		{Name: "URL", Value: "https://$(KUBERNETES_SERVICE_HOST)/"},
		{Name: "NONE", Value: "$(THEIRS_SERVICE_HOST)"},
	}}
	const own = "REDIS_DB_PORT=mine\nURL=https://10.0.0.1/\nNONE=$(THEIRS_SERVICE_HOST)\n"
	for name, tc := range map[string]struct {
		links *bool
		want  string
	}{
		"as by default": {nil, own + apiServer + "\n" + linked},
		"with links":    {new(true), own + apiServer + "\n" + linked},
		"without links": {new(false), own + apiServer},
	} {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Spec: v1.PodSpec{EnableServiceLinks: tc.links, Containers: []v1.Container{container}}}
		env, err := containerenv.Resolve(t.Context(), pod, &container, containerenv.Sources{Objects: objects.NewStore(), Services: services})
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(env.List(), "\n"); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, tc.want)
		}
		for i, v := range env.EnvVars() {
			if v.ValueFrom != nil || v.Name+"="+v.Value != env.List()[i] {
				t.Errorf("EnvVars()[%d] = %v", i, v)
			}
		}
		if !slices.Equal(env.Names()[:3], []string{"REDIS_DB_PORT", "URL", "NONE"}) {
			t.Errorf("the container's own do not come first: %v", env.Names())
		}
	}
}

// The pod's own namespace may have a service of the API server's name.
func TestAServiceOfTheAPIServersName(t *testing.T) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	services := []v1.Service{service("shop", "kubernetes", "10.0.0.2"), service("default", "kubernetes", "10.0.0.1", v1.ServicePort{Port: 443})}
	for range 2 {
		slices.Reverse(services) // whichever comes first
		env, err := containerenv.Resolve(t.Context(), pod, &v1.Container{}, containerenv.Sources{Services: services})
		if err != nil || !slices.Equal(env.List(), []string{"KUBERNETES_SERVICE_HOST=10.0.0.2"}) {
			t.Errorf("%v, %v", env.List(), err)
		}
	}
}
