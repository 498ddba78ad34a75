// A Kubernetes API server for tests, built from the same libraries as the one of a cluster. Custom resources are
// upstream's own: schemas, CEL rules, status, watches, conflicts. The core kinds below are kept as they are sent, without
// defaults and validation. A token is the name of its user: `tests` may do everything, others what RBAC's objects say.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	extensions "k8s.io/apiextensions-apiserver/pkg/apiserver"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	extensionoptions "k8s.io/apiextensions-apiserver/pkg/cmd/server/options"
	extensionopenapi "k8s.io/apiextensions-apiserver/pkg/generated/openapi"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/names"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type kind struct {
	group      schema.GroupVersion
	plural     string
	object     runtime.Object
	list       runtime.Object
	namespaced bool
}

var kinds = []kind{
	{corev1.SchemeGroupVersion, "configmaps", &corev1.ConfigMap{}, &corev1.ConfigMapList{}, true},
	{corev1.SchemeGroupVersion, "events", &corev1.Event{}, &corev1.EventList{}, true},
	{corev1.SchemeGroupVersion, "namespaces", &corev1.Namespace{}, &corev1.NamespaceList{}, false},
	{corev1.SchemeGroupVersion, "nodes", &corev1.Node{}, &corev1.NodeList{}, false},
	{corev1.SchemeGroupVersion, "persistentvolumeclaims", &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolumeClaimList{}, true},
	{corev1.SchemeGroupVersion, "persistentvolumes", &corev1.PersistentVolume{}, &corev1.PersistentVolumeList{}, false},
	{corev1.SchemeGroupVersion, "pods", &corev1.Pod{}, &corev1.PodList{}, true},
	{corev1.SchemeGroupVersion, "secrets", &corev1.Secret{}, &corev1.SecretList{}, true},
	{corev1.SchemeGroupVersion, "services", &corev1.Service{}, &corev1.ServiceList{}, true},
	{batchv1.SchemeGroupVersion, "jobs", &batchv1.Job{}, &batchv1.JobList{}, true},
	{networkingv1.SchemeGroupVersion, "networkpolicies", &networkingv1.NetworkPolicy{}, &networkingv1.NetworkPolicyList{}, true},
	{rbacv1.SchemeGroupVersion, "roles", &rbacv1.Role{}, &rbacv1.RoleList{}, true},
	{rbacv1.SchemeGroupVersion, "rolebindings", &rbacv1.RoleBinding{}, &rbacv1.RoleBindingList{}, true},
	{rbacv1.SchemeGroupVersion, "clusterroles", &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleList{}, false},
	{rbacv1.SchemeGroupVersion, "clusterrolebindings", &rbacv1.ClusterRoleBinding{}, &rbacv1.ClusterRoleBindingList{}, false},
	{schedulingv1.SchemeGroupVersion, "priorityclasses", &schedulingv1.PriorityClass{}, &schedulingv1.PriorityClassList{}, false},
}

var (
	scheme     = runtime.NewScheme()
	codecs     serializer.CodecFactory
	parameters runtime.ParameterCodec
	must       = utilruntime.Must
)

func init() {
	must(corev1.AddToScheme(scheme))
	must(batchv1.AddToScheme(scheme))
	must(networkingv1.AddToScheme(scheme))
	must(rbacv1.AddToScheme(scheme))
	must(schedulingv1.AddToScheme(scheme))
	for _, k := range kinds {
		// The stored form is the versioned one: there is nothing to convert.
		scheme.AddKnownTypes(schema.GroupVersion{Group: k.group.Group, Version: runtime.APIVersionInternal}, k.object, k.list)
		must(scheme.AddFieldLabelConversionFunc(k.group.WithKind(reflect.TypeOf(k.object).Elem().Name()),
			func(label, value string) (string, string, error) { return label, value, nil }))
	}
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{},
		&metav1.APIGroup{}, &metav1.APIResourceList{})
	must(scheme.SetVersionPriority(corev1.SchemeGroupVersion))
	codecs = serializer.NewCodecFactory(scheme)
	parameters = runtime.NewParameterCodec(scheme)
}

// keeper is what a registry asks about objects of one kind; `status` is the one of the subresource.
type keeper struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced, status bool
}

func (k keeper) NamespaceScoped() bool { return k.namespaced }

func (keeper) PrepareForCreate(_ context.Context, object runtime.Object) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetGeneration(1)
	}
	if pod, ok := object.(*corev1.Pod); ok {
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending}
	}
}

// An update of an object leaves its status alone, and one of the status everything else.
func (k keeper) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	next, last := reflect.ValueOf(object).Elem(), reflect.ValueOf(old).Elem()
	if !next.FieldByName("Status").IsValid() {
		return
	}
	if !k.status {
		next.FieldByName("Status").Set(last.FieldByName("Status"))
		return
	}
	wanted := reflect.New(next.Type()).Elem()
	wanted.Set(last)
	wanted.FieldByName("Status").Set(next.FieldByName("Status"))
	version := next.FieldByName("ObjectMeta").FieldByName("ResourceVersion").String()
	wanted.FieldByName("ObjectMeta").FieldByName("ResourceVersion").SetString(version)
	next.Set(wanted)
}

func (keeper) Validate(context.Context, runtime.Object) field.ErrorList { return nil }
func (keeper) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}
func (keeper) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }
func (keeper) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
func (keeper) Canonicalize(runtime.Object)      {}
func (keeper) AllowCreateOnUpdate() bool        { return false }
func (keeper) AllowUnconditionalUpdate() bool   { return true }

// CheckGracefulDelete makes a pod stay, with its deadline, until whoever runs it deletes it for good.
func (keeper) CheckGracefulDelete(_ context.Context, object runtime.Object, options *metav1.DeleteOptions) bool {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return false
	}
	grace := int64(30)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if options.GracePeriodSeconds != nil {
		grace = *options.GracePeriodSeconds
	}
	ended := pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
	if pod.Spec.NodeName == "" || ended {
		grace = 0
	}
	options.GracePeriodSeconds = &grace
	return true
}

func attributes(object runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	set := fields.Set{"metadata.name": accessor.GetName(), "metadata.namespace": accessor.GetNamespace()}
	switch it := object.(type) {
	case *corev1.Pod:
		set["spec.nodeName"], set["status.phase"] = it.Spec.NodeName, string(it.Status.Phase)
	case *corev1.Event:
		set["involvedObject.name"], set["involvedObject.kind"] = it.InvolvedObject.Name, it.InvolvedObject.Kind
	case *corev1.Node:
		set["spec.unschedulable"] = map[bool]string{true: "true", false: "false"}[it.Spec.Unschedulable]
	}
	return accessor.GetLabels(), set, nil
}

// statusOf is the subresource `status`.
type statusOf struct{ store *registry.Store }

func (s statusOf) New() runtime.Object { return s.store.NewFunc() }
func (statusOf) Destroy()              {}
func (s statusOf) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return s.store.Get(ctx, name, options)
}
func (s statusOf) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions) (runtime.Object, bool, error) {
	return s.store.Update(ctx, name, info, create, update, false, options)
}

func storageOf(k kind, getter generic.RESTOptionsGetter) (rest.Storage, rest.Storage) {
	fresh := func(object runtime.Object) func() runtime.Object {
		concrete := reflect.TypeOf(object).Elem()
		return func() runtime.Object { return reflect.New(concrete).Interface().(runtime.Object) }
	}
	own := keeper{scheme, names.SimpleNameGenerator, k.namespaced, false}
	singular := strings.ToLower(reflect.TypeOf(k.object).Elem().Name())
	store := &registry.Store{
		NewFunc:     fresh(k.object),
		NewListFunc: fresh(k.list),
		PredicateFunc: func(label labels.Selector, field fields.Selector) storage.SelectionPredicate {
			return storage.SelectionPredicate{Label: label, Field: field, GetAttrs: attributes}
		},
		DefaultQualifiedResource:  schema.GroupResource{Group: k.group.Group, Resource: k.plural},
		SingularQualifiedResource: schema.GroupResource{Group: k.group.Group, Resource: singular},
		CreateStrategy:            own,
		UpdateStrategy:            own,
		DeleteStrategy:            own,
	}
	store.TableConvertor = rest.NewDefaultTableConvertor(store.DefaultQualifiedResource)
	must(store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: getter, AttrFunc: attributes}))
	if !reflect.ValueOf(k.object).Elem().FieldByName("Status").IsValid() {
		return store, nil
	}
	ofStatus := *store
	own.status = true
	ofStatus.UpdateStrategy = own
	return store, statusOf{&ofStatus}
}

// Core kinds have no schema here; "an object with anything in it" is enough for discovery.
func definitions(reference common.ReferenceCallback) map[string]common.OpenAPIDefinition {
	found := extensionopenapi.GetOpenAPIDefinitions(reference)
	anything := spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}}}
	anything.Extensions = spec.Extensions{"x-kubernetes-preserve-unknown-fields": true}
	for known := range scheme.AllKnownTypes() {
		name, err := scheme.ToOpenAPIDefinitionName(known)
		if _, there := found[name]; err == nil && !there {
			found[name] = common.OpenAPIDefinition{Schema: anything}
		}
	}
	return found
}

var ofALog = regexp.MustCompile(`^/api/v1/namespaces/([^/]+)/pods/([^/]+)/log$`)

// logs answers for the kubelets: a pod's output is the file NAMESPACE_POD.log, complete when NAMESPACE_POD.log.done is there.
func logs(folder string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		match := ofALog.FindStringSubmatch(request.URL.Path)
		if match == nil {
			next.ServeHTTP(writer, request)
			return
		}
		path := filepath.Join(folder, filepath.Base(match[1])+"_"+filepath.Base(match[2])+".log")
		file, err := os.Open(path)
		if err != nil {
			refuse(writer, `container "node" in pod "`+match[2]+`" is waiting to start: ContainerCreating`)
			return
		}
		defer file.Close()
		follow := request.URL.Query().Get("follow") == "true"
		for {
			_, err := os.Stat(path + ".done")
			ended := err == nil
			if _, err := io.Copy(writer, file); err != nil || ended || !follow {
				return
			}
			http.NewResponseController(writer).Flush()
			select {
			case <-request.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

func refuse(writer http.ResponseWriter, message string) {
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(http.StatusBadRequest)
	json.NewEncoder(writer).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Message: message,
		Reason: metav1.StatusReasonBadRequest, Code: http.StatusBadRequest,
	})
}

// groups lists the API groups of both servers together, as the aggregator of a whole cluster does.
func groups(crds crdlisters.CustomResourceDefinitionLister, next http.Handler) http.Handler {
	return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
		aggregated := strings.Contains(request.Header.Get("Accept"), "apidiscovery")
		if strings.TrimSuffix(request.URL.Path, "/") != "/apis" || aggregated {
			next.ServeHTTP(writer, request)
			return
		}
		versions := map[string]string{"apiextensions.k8s.io": "v1"}
		for _, k := range kinds {
			if k.group.Group != "" {
				versions[k.group.Group] = k.group.Version
			}
		}
		found, _ := crds.List(labels.Everything())
		for _, crd := range found {
			versions[crd.Spec.Group] = crd.Spec.Versions[0].Name
		}
		answer := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for group, version := range versions {
			one := metav1.GroupVersionForDiscovery{GroupVersion: group + "/" + version, Version: version}
			answer.Groups = append(answer.Groups, metav1.APIGroup{
				Name: group, Versions: []metav1.GroupVersionForDiscovery{one}, PreferredVersion: one,
			})
		}
		writer.Header().Set("Content-Type", "application/json")
		json.NewEncoder(writer).Encode(answer)
	})
}

// rights decides as RBAC does, by the roles that the server has at that moment; `*` stands for every name.
type rights struct{ client kubernetes.Interface }

func (r rights) Authorize(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) || !a.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	every, err := r.client.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	for _, binding := range every.Items {
		if named(binding.Subjects, a.GetUser().GetName()) && r.allows(ctx, binding.RoleRef, "", a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	if a.GetNamespace() == "" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	own, err := r.client.RbacV1().RoleBindings(a.GetNamespace()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	for _, binding := range own.Items {
		if named(binding.Subjects, a.GetUser().GetName()) && r.allows(ctx, binding.RoleRef, a.GetNamespace(), a) {
			return authorizer.DecisionAllow, "", nil
		}
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func named(subjects []rbacv1.Subject, user string) bool {
	return slices.ContainsFunc(subjects, func(one rbacv1.Subject) bool {
		account := one.Kind == "ServiceAccount" && user == "system:serviceaccount:"+one.Namespace+":"+one.Name
		return account || one.Kind == "User" && user == one.Name
	})
}

func (r rights) allows(ctx context.Context, reference rbacv1.RoleRef, namespace string, a authorizer.Attributes) bool {
	var rules []rbacv1.PolicyRule
	if reference.Kind == "ClusterRole" {
		if role, err := r.client.RbacV1().ClusterRoles().Get(ctx, reference.Name, metav1.GetOptions{}); err == nil {
			rules = role.Rules
		}
	} else if role, err := r.client.RbacV1().Roles(namespace).Get(ctx, reference.Name, metav1.GetOptions{}); err == nil {
		rules = role.Rules
	}
	resource := a.GetResource()
	if a.GetSubresource() != "" {
		resource += "/" + a.GetSubresource()
	}
	has := func(list []string, name string) bool { return slices.Contains(list, name) || slices.Contains(list, "*") }
	return slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
		return has(rule.Verbs, a.GetVerb()) && has(rule.APIGroups, a.GetAPIGroup()) && has(rule.Resources, resource) &&
			(len(rule.ResourceNames) == 0 || slices.Contains(rule.ResourceNames, a.GetName()))
	})
}

func main() {
	etcd := flag.String("etcd", "", "address of etcd")
	port := flag.Int("port", 0, "port to listen on")
	folder := flag.String("folder", "", "where the certificate is written")
	podLogs := flag.String("pod-logs", "", "where the output of pods is")
	flag.Parse()

	options := extensionoptions.NewCustomResourceDefinitionsServerOptions(os.Stdout, os.Stderr)
	recommended := options.RecommendedOptions
	recommended.Etcd.StorageConfig.Transport.ServerList = []string{*etcd}
	recommended.Authentication, recommended.Authorization = nil, nil
	recommended.CoreAPI, recommended.Admission = nil, nil
	recommended.Features.EnablePriorityAndFairness = false
	loopback := net.IPv4(127, 0, 0, 1)
	recommended.SecureServing.BindAddress, recommended.SecureServing.BindPort = loopback, *port
	recommended.SecureServing.ServerCert.CertDirectory = *folder
	must(options.Complete())
	must(recommended.SecureServing.MaybeDefaultWithSelfSignedCerts("localhost", nil, []net.IP{loopback}))

	config := server.NewRecommendedConfig(extensions.Codecs)
	must(options.ServerRunOptions.ApplyTo(&config.Config))
	must(recommended.Etcd.ApplyTo(&config.Config))
	must(recommended.SecureServing.ApplyToConfig(&config.Config))
	must(recommended.Features.ApplyTo(&config.Config, nil, nil))
	must(options.APIEnablement.ApplyTo(&config.Config, extensions.DefaultAPIResourceConfigSource(), extensions.Scheme))
	client, err := kubernetes.NewForConfig(config.LoopbackClientConfig)
	must(err)
	config.SharedInformerFactory = informers.NewSharedInformerFactory(client, 10*time.Minute)
	namer := openapinamer.NewDefinitionNamer(extensions.Scheme, scheme)
	config.OpenAPIConfig = server.DefaultOpenAPIConfig(definitions, namer)
	config.OpenAPIV3Config = server.DefaultOpenAPIV3Config(definitions, namer)
	config.Authorization.Authorizer = rights{client}
	config.Authentication.Authenticator = authenticator.RequestFunc(
		func(request *http.Request) (*authenticator.Response, bool, error) {
			name := strings.TrimPrefix(request.Header.Get("Authorization"), "Bearer ")
			found := &user.DefaultInfo{Name: name}
			if name == "tests" || name == config.LoopbackClientConfig.BearerToken {
				found.Groups = []string{user.SystemPrivilegedGroup}
			}
			return &authenticator.Response{User: found}, name != "", nil
		})
	config.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")

	core := config.Config // before the server of custom resources fills in what is its own
	core.PostStartHooks = map[string]server.PostStartHookConfigEntry{}
	custom := &extensions.Config{GenericConfig: config, ExtraConfig: extensions.ExtraConfig{
		CRDRESTOptionsGetter: extensionoptions.NewCRDRESTOptionsGetter(
			*recommended.Etcd, config.ResourceTransformers, config.StorageObjectCountTracker),
		AuthResolverWrapper: webhook.NewDefaultAuthenticationInfoResolverWrapper(
			nil, nil, config.LoopbackClientConfig, noop.NewTracerProvider()),
	}}
	behind, err := custom.Complete().New(server.NewEmptyDelegate())
	must(err)

	core.Serializer = codecs
	own := *recommended.Etcd
	own.StorageConfig.Prefix = "/registry/core"
	own.StorageConfig.Codec = codecs.LegacyCodec(
		corev1.SchemeGroupVersion, batchv1.SchemeGroupVersion, networkingv1.SchemeGroupVersion, rbacv1.SchemeGroupVersion,
		schedulingv1.SchemeGroupVersion)
	own.SkipHealthEndpoints = true
	core.RESTOptionsGetter = nil
	must(own.ApplyTo(&core))
	crds := behind.Informers.Apiextensions().V1().CustomResourceDefinitions().Lister()
	build := core.BuildHandlerChainFunc
	core.BuildHandlerChainFunc = func(handler http.Handler, c *server.Config) http.Handler {
		return groups(crds, build(logs(*podLogs, handler), c))
	}
	front, err := core.Complete(config.SharedInformerFactory).New("tests", behind.GenericAPIServer)
	must(err)
	install(front, core.RESTOptionsGetter)
	must(front.PrepareRun().RunWithContext(server.SetupSignalContext()))
}

func install(front *server.GenericAPIServer, getter generic.RESTOptionsGetter) {
	storages := map[schema.GroupVersion]map[string]rest.Storage{}
	for _, k := range kinds {
		if storages[k.group] == nil {
			storages[k.group] = map[string]rest.Storage{}
		}
		object, status := storageOf(k, getter)
		storages[k.group][k.plural] = object
		if status != nil {
			storages[k.group][k.plural+"/status"] = status
		}
	}
	for group, storage := range storages {
		info := server.NewDefaultAPIGroupInfo(group.Group, scheme, parameters, codecs)
		info.VersionedResourcesStorageMap[group.Version] = storage
		if group.Group == "" {
			must(front.InstallLegacyAPIGroup("/api", &info))
		} else {
			must(front.InstallAPIGroup(&info))
		}
	}
}
