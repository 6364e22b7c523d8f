package cluster_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// realWays are all ways to read config maps.
var realWays = map[string]cluster.Config{
	"keyed":  {Shared: []string{}},
	"shared": {Shared: []string{"ConfigMap", "Node"}},
	"polled": {Shared: []string{}, Polled: []string{"ConfigMap", "Node"}},
}

// The server is killed twice, and what happens in between expires.
func TestAnOutageOfARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		admin := withNamespaces(t, s).CoreV1().ConfigMaps("ops")
		var seen string
		for _, name := range []string{"app", "old"} {
			created, err := admin.Create(t.Context(), configMap(name), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			seen = created.ResourceVersion
		}
		var cuts []*hurdle
		clients := make(map[string]*cluster.Client)
		for way, config := range realWays {
			set, h := as(t, s.Admin(t))
			c := connect(t, set, config)
			for name, wanted := range map[string]func(metav1.Object, error) bool{"app": hasValue("value"), "old": hasValue("value"), "new": isMissing} {
				defer c.Watch(ref(name), func(volume.ObjectRef) {})()
				eventually(t, c, ref(name), wanted)
			}
			clients[way], cuts = c, append(cuts, h)
		}

		s.Kill(t)
		for way, c := range clients {
			for name, wanted := range map[string]func(metav1.Object, error) bool{"app": hasValue("value"), "old": hasValue("value"), "new": isMissing} {
				if object, err := c.Get(t.Context(), ref(name)); !wanted(object, err) {
					t.Errorf("%s: during the outage %s is %v, %v", way, name, object, err)
				}
			}
			if _, err := c.Live().Get(t.Context(), ref("new")); err == nil || errors.Is(err, volume.ErrNotFound) {
				t.Errorf("%s: a live look-up during the outage: %v", way, err)
			}
			_, err := c.Create(t.Context(), configMap("never"))
			if err == nil || errors.Is(err, objects.ErrUncertain) {
				t.Errorf("%s: a creation that the server never got: %v", way, err)
			}
		}

		for _, h := range cuts {
			h.is(func(*http.Request) error { return clustertest.ErrUnreachable })
		}
		s.Start(t)
		changed := configMap("app")
		changed.Data["key"] = "changed"
		_, update := admin.Update(t.Context(), changed, metav1.UpdateOptions{})
		_, create := admin.Create(t.Context(), configMap("new"), metav1.CreateOptions{})
		if err := errors.Join(update, create, admin.Delete(t.Context(), "old", metav1.DeleteOptions{})); err != nil {
			t.Fatal(err)
		}
		s.Kill(t)
		s.Start(t)
		w, err := admin.Watch(t.Context(), metav1.ListOptions{ResourceVersion: seen})
		if err != nil {
			t.Fatal(err)
		}
		if e := <-w.ResultChan(); e.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(e.Object)) {
			t.Errorf("version %s has not expired: %v", seen, e)
		}
		w.Stop()
		for _, h := range cuts {
			h.is(nil)
		}
		for way, c := range clients {
			t.Run(way, func(t *testing.T) {
				for name, wanted := range map[string]func(metav1.Object, error) bool{"app": hasValue("changed"), "old": isMissing, "new": hasValue("value")} {
					eventually(t, c, ref(name), wanted)
				}
			})
		}
	})
}

func isMissing(_ metav1.Object, err error) bool { return errors.Is(err, volume.ErrNotFound) }

func hasValue(value string) func(metav1.Object, error) bool {
	return func(object metav1.Object, err error) bool {
		c, ok := object.(*v1.ConfigMap)
		return err == nil && ok && c.Data["key"] == value
	}
}

func TestALongListOfARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		withNamespaces(t, s)
		set, _ := as(t, s.Admin(t))
		c := connect(t, set, cluster.Config{Shared: []string{}})
		const n = 1201 // three pages
		for i := range n {
			if _, err := c.Create(t.Context(), configMap(fmt.Sprintf("app-%04d", i))); err != nil {
				t.Fatal(err)
			}
		}
		all, err := objects.List[*v1.ConfigMap](t.Context(), c.Live(), "ConfigMap", "ops")
		if err != nil || len(all) != n || all[0].Name != "app-0000" || all[n-1].Name != fmt.Sprintf("app-%04d", n-1) {
			t.Errorf("listed %d of %d, %v", len(all), n, err)
		}
	})
}
