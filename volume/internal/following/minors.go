package following

import (
	"context"
	"encoding/json"
	"reflect"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/util/kubeapi"
)

// This file has what differs between the minors of client-go that compile (0.34 to
// 0.37). What a minor lacks is found by name, since it cannot be named in Go.

// TrustBundleClient is client-go's typed client of ClusterTrustBundles of one
// version.
type TrustBundleClient struct{ typed reflect.Value }

// StableTrustBundles returns the client of certificates.k8s.io/v1 (0.37), and false
// where client-go has none.
func StableTrustBundles(c kubernetes.Interface) (TrustBundleClient, bool) {
	method := reflect.ValueOf(c.CertificatesV1()).MethodByName("ClusterTrustBundles")
	if !method.IsValid() {
		return TrustBundleClient{}, false
	}
	return TrustBundleClient{method.Call(nil)[0]}, true
}

// BetaTrustBundles returns the client of certificates.k8s.io/v1beta1.
func BetaTrustBundles(c kubernetes.Interface) TrustBundleClient {
	return TrustBundleClient{reflect.ValueOf(c.CertificatesV1beta1().ClusterTrustBundles())}
}

// TrustBundles returns the client of [kubeapi.TrustBundleVersion].
func TrustBundles(c kubernetes.Interface) TrustBundleClient {
	if kubeapi.TrustBundleVersion() == certificatesv1.SchemeGroupVersion {
		if stable, ok := StableTrustBundles(c); ok {
			return stable
		}
	}
	return BetaTrustBundles(c)
}

// Get calls the typed client's Get.
func (c TrustBundleClient) Get(ctx context.Context, name string, options metav1.GetOptions) (metav1.Object, error) {
	return results[metav1.Object](c.typed.MethodByName("Get").Call(arguments(ctx, name, options)))
}

// List calls the typed client's List.
func (c TrustBundleClient) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return results[runtime.Object](c.typed.MethodByName("List").Call(arguments(ctx, options)))
}

// Watch calls the typed client's Watch.
func (c TrustBundleClient) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return results[watch.Interface](c.typed.MethodByName("Watch").Call(arguments(ctx, options)))
}

// Create calls the typed client's Create, for an object of its version.
func (c TrustBundleClient) Create(ctx context.Context, object metav1.Object, options metav1.CreateOptions) (metav1.Object, error) {
	return results[metav1.Object](c.typed.MethodByName("Create").Call(arguments(ctx, object, options)))
}

// Update calls the typed client's Update, for an object of its version.
func (c TrustBundleClient) Update(ctx context.Context, object metav1.Object, options metav1.UpdateOptions) (metav1.Object, error) {
	return results[metav1.Object](c.typed.MethodByName("Update").Call(arguments(ctx, object, options)))
}

// Delete calls the typed client's Delete.
func (c TrustBundleClient) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	err, _ := c.typed.MethodByName("Delete").Call(arguments(ctx, name, options))[0].Interface().(error)
	return err
}

func arguments(all ...any) (values []reflect.Value) {
	for _, a := range all {
		values = append(values, reflect.ValueOf(a))
	}
	return values
}

func results[T any](out []reflect.Value) (T, error) {
	value, _ := out[0].Interface().(T)
	err, _ := out[1].Interface().(error)
	return value, err
}

// ServerResources asks which resources a version has, until ctx ends. Client-go's own
// method heeds ctx only from 0.37 on.
func ServerResources(ctx context.Context, d discovery.DiscoveryInterface, version schema.GroupVersion) (*metav1.APIResourceList, error) {
	client := d.RESTClient()
	if client == nil { // a fake one answers at once
		return d.ServerResourcesForGroupVersion(version.String())
	}
	resources := new(metav1.APIResourceList)
	err := client.Get().AbsPath("apis", version.Group, version.Version).Do(ctx).Into(resources)
	return resources, err
}

// ServerVersion asks which version the server is of, likewise.
func ServerVersion(ctx context.Context, d discovery.DiscoveryInterface) (*version.Info, error) {
	client := d.RESTClient()
	if client == nil {
		return d.ServerVersion()
	}
	data, err := client.Get().AbsPath("version").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	info := new(version.Info)
	return info, json.Unmarshal(data, info)
}

// syncPoll is how often an informer without such a channel is asked.
const syncPoll = 100 * time.Millisecond

// Synced returns a channel that is closed once a handler has been told of the
// informer's first list. Before client-go 0.37, which has such a channel, a goroutine
// polls until then, or until closed is closed.
func Synced(registration cache.ResourceEventHandlerRegistration, closed <-chan struct{}) <-chan struct{} {
	type checker interface{ Done() <-chan struct{} }
	if method := reflect.ValueOf(registration).MethodByName("HasSyncedChecker"); method.IsValid() {
		if c, ok := method.Call(nil)[0].Interface().(checker); ok {
			return c.Done()
		}
	}
	return polled(registration.HasSynced, closed)
}

func polled(synced func() bool, closed <-chan struct{}) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		again := time.NewTicker(syncPoll)
		defer again.Stop()
		for !synced() {
			select {
			case <-again.C:
			case <-closed:
				return
			}
		}
		close(done)
	}()
	return done
}

// listWatch tells a reflector what cache.ToListWatcherWithWatchListSemantics would
// (0.35): whether the client, a fake one for example, does not know how to list by
// watching.
type listWatch struct {
	*cache.ListWatch
	client any
}

// IsWatchListSemanticsUnSupported is asked by reflectors, under this name.
func (l listWatch) IsWatchListSemanticsUnSupported() bool {
	c, ok := l.client.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && c.IsWatchListSemanticsUnSupported()
}

// reflectorOptions gives the reflector its logger, where it takes one (0.36);
// before, it takes its context's.
func reflectorOptions(kind string, logger *klog.Logger) cache.ReflectorOptions {
	options := cache.ReflectorOptions{Name: "podvol", TypeDescription: kind}
	if field := reflect.ValueOf(&options).Elem().FieldByName("Logger"); field.IsValid() {
		field.Set(reflect.ValueOf(logger))
	}
	return options
}
