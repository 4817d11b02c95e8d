{{- define "rollout.name" -}}
{{- regexReplaceAll "[-.]+$" (default .Chart.Name .Values.nameOverride | trunc 40) "" -}}
{{- end -}}

{{/* Before "-operator", "-gateway" and "-redis"; short enough that a pod of a StatefulSet has a label with its name. */}}
{{- define "rollout.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "rollout.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, component. Never changes, so it may select. */}}
{{- define "rollout.selector" -}}
app.kubernetes.io/name: {{ include "rollout.name" .root | quote }}
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* A value of a label, an annotation or the like: numbers and truth values as they were written, but as text. */}}
{{- define "rollout.text" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "rollout.texts" -}}
{{- range $key, $value := . }}
{{ $key | quote }}: {{ include "rollout.text" $value | quote }}
{{- end }}
{{- end -}}

{{/* Those that the chart writes itself (rollout.checks refuses them from values). */}}
{{- define "rollout.ownLabels" -}}
["app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/part-of",
 "app.kubernetes.io/version", "app.kubernetes.io/managed-by", "helm.sh/chart"]
{{- end -}}

{{- define "rollout.labels" -}}
{{- include "rollout.texts" (merge (dict) (default (dict) .labels) .root.Values.commonLabels) }}
{{ include "rollout.selector" . }}
app.kubernetes.io/part-of: rolloutjob
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Arguments: root, component, name, and where they differ namespace, annotations. */}}
{{- define "rollout.metadata" -}}
name: {{ .name | quote }}
{{- if not .cluster }}
namespace: {{ default .root.Release.Namespace .namespace | quote }}
{{- end }}
labels:
  {{- include "rollout.labels" . | trim | nindent 2 }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- include "rollout.texts" . | trim | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Arguments: root, image. */}}
{{- define "rollout.image" -}}
{{- $registry := default .root.Values.global.imageRegistry .image.registry -}}
{{- $name := ternary .image.repository (printf "%s/%s" $registry .image.repository) (empty $registry) -}}
{{- if .image.digest -}}
{{- printf "%s@%s" $name .image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Arguments: root, component. */}}
{{- define "rollout.accountName" -}}
{{- $account := (index .root.Values .component).serviceAccount -}}
{{- if $account.create -}}
{{- default (printf "%s-%s" (include "rollout.fullname" .root) .component) $account.name -}}
{{- else -}}
{{- required (printf "%s.serviceAccount.name is needed with create: false" .component) $account.name -}}
{{- end -}}
{{- end -}}

{{- define "rollout.isClusterWide" -}}
{{- if has "*" .Values.watch.namespaces -}}
{{- if gt (len .Values.watch.namespaces) 1 -}}
{{- fail "watch.namespaces: \"*\" stands for all namespaces and cannot stand beside others" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/* A JSON list: where jobs are looked after, if that is not everywhere. */}}
{{- define "rollout.namespaces" -}}
{{- if include "rollout.isClusterWide" . -}}
[]
{{- else -}}
{{- default (list .Release.Namespace) .Values.watch.namespaces | uniq | sortAlpha | toJson -}}
{{- end -}}
{{- end -}}

{{/* A JSON list: where the server's password is needed. */}}
{{- define "rollout.secretNamespaces" -}}
{{- $watched := include "rollout.namespaces" . | fromJsonArray -}}
{{- concat (list .Release.Namespace) $watched .Values.redis.auth.secretNamespaces | uniq | sortAlpha | toJson -}}
{{- end -}}

{{- define "rollout.redisName" -}}
{{ include "rollout.fullname" . }}-redis
{{- end -}}

{{- define "rollout.redisHost" -}}
{{- if .Values.redis.external.host -}}
{{- .Values.redis.external.host -}}
{{- else -}}
{{- printf "%s.%s.svc" (include "rollout.redisName" .) .Release.Namespace -}}
{{- end -}}
{{- end -}}

{{- define "rollout.redisUrl" -}}
{{- $external := .Values.redis.external -}}
{{- $host := include "rollout.redisHost" . -}}
{{- $host = ternary (printf "[%s]" $host) $host (contains ":" $host) -}}
{{- if $external.host -}}
{{- printf "%s://%s%s:%d" (ternary "rediss" "redis" $external.tls.enabled) (ternary "" (printf "%s@" $external.username) (empty $external.username)) $host (int $external.port) -}}
{{- else -}}
{{- printf "redis://%s:6379" $host -}}
{{- end -}}
{{- end -}}

{{/* Name of the Secret with the password; empty: the server has none. */}}
{{- define "rollout.redisSecret" -}}
{{- if .Values.redis.auth.existingSecret -}}
{{- .Values.redis.auth.existingSecret -}}
{{- else if or (not .Values.redis.external.host) .Values.redis.auth.password -}}
{{- include "rollout.redisName" . -}}
{{- end -}}
{{- end -}}

{{- define "rollout.redisCaSecret" -}}
{{- if and .Values.redis.external.host .Values.redis.external.tls.enabled -}}
{{- .Values.redis.external.tls.caSecret -}}
{{- end -}}
{{- end -}}

{{/*
Where the data is: "claim", "claimOfRoot" (a volume that belongs to root, which is given to the server's account first), or
"memory". Kubernetes' own host-path provisioner, of test clusters, makes volumes that only root may write, whatever fsGroup
says. A namespace that lets no root in has no way to use new ones; one that was there before it did not is handed over already.
*/}}
{{- define "rollout.redisStorage" -}}
{{- $settings := .Values.redis.persistence -}}
{{- $isRoots := eq $settings.volumeOwner "Root" -}}
{{- if eq $settings.volumeOwner "Auto" -}}
{{- $class := dict -}}
{{- if $settings.storageClass -}}
{{- $class = lookup "storage.k8s.io/v1" "StorageClass" "" $settings.storageClass -}}
{{- else -}}
{{- range (lookup "storage.k8s.io/v1" "StorageClass" "" "").items -}}
{{- if eq (toString (dig "metadata" "annotations" "storageclass.kubernetes.io/is-default-class" "" .)) "true" -}}
{{- $class = . -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $isRoots = eq (toString (dig "provisioner" "" (default (dict) $class))) "kubernetes.io/host-path" -}}
{{- end -}}
{{- $level := "" -}}
{{- if $isRoots -}}
{{- $namespace := lookup "v1" "Namespace" "" .Release.Namespace -}}
{{- $level = toString (dig "metadata" "labels" "pod-security.kubernetes.io/enforce" "" (default (dict) $namespace)) -}}
{{- end -}}
{{- if not $settings.enabled -}}
memory
{{- else if not $isRoots -}}
claim
{{- else if ne $level "restricted" -}}
claimOfRoot
{{- else if lookup "v1" "PersistentVolumeClaim" .Release.Namespace (printf "data-%s-0" (include "rollout.redisName" .)) -}}
claim
{{- else -}}
memory
{{- end -}}
{{- end -}}

{{/* Three quarters of the memory limit, in bytes. */}}
{{- define "rollout.redisMaxmemory" -}}
{{- if .Values.redis.maxmemory -}}
{{- .Values.redis.maxmemory -}}
{{- else -}}
{{- $limit := toString (dig "limits" "memory" "" .Values.redis.resources) -}}
{{- if not (regexMatch "^[0-9]+(Ki|Mi|Gi|Ti|k|M|G)?$" $limit) -}}
{{- fail "redis.maxmemory is needed where redis.resources.limits.memory is not a whole number with Ki, Mi, Gi, Ti, k, M or G" -}}
{{- end -}}
{{- div (mul (include "rollout.bytes" $limit | int64) 3) 4 -}}
{{- end -}}
{{- end -}}

{{- define "rollout.gatewayUrl" -}}
{{- if .Values.gateway.enabled -}}
{{- if .Values.gateway.externalUrl -}}
{{- .Values.gateway.externalUrl -}}
{{- else -}}
{{- $port := int .Values.gateway.service.port -}}
{{- $isTls := not (empty .Values.gateway.tls.existingSecret) -}}
{{- $isUsual := eq $port (ternary 443 80 $isTls) -}}
{{- printf "%s://%s-gateway.%s.svc%s" (ternary "https" "http" $isTls) (include "rollout.fullname" .) .Release.Namespace (ternary "" (printf ":%d" $port) $isUsual) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Whether an object of the whole cluster is this release's to write: it is not there, or is its own. Arguments: root, found. */}}
{{- define "rollout.mayWrite" -}}
{{- $notes := dig "metadata" "annotations" (dict) (default (dict) .found) | default (dict) -}}
{{- $name := get $notes "meta.helm.sh/release-name" -}}
{{- $namespace := get $notes "meta.helm.sh/release-namespace" -}}
{{- if or (not .found) (and (eq (toString $name) .root.Release.Name) (eq (toString $namespace) .root.Release.Namespace)) -}}
true
{{- end -}}
{{- end -}}

{{/* Somebody else's definition that is the same is left alone; for one that is not, Helm says whose it is. */}}
{{- define "rollout.installsCrd" -}}
{{- if .Values.crds.install -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "rolloutjobs.rolloutjob.dev" -}}
{{- $mark := dig "metadata" "annotations" "rolloutjob.dev/schema-hash" "" $found -}}
{{- if or (include "rollout.mayWrite" (dict "root" . "found" $found)) (ne $mark (include "rollout.schemaHash" .)) -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every container of the platform's two programs is told of the servers. */}}
{{- define "rollout.commonEnv" -}}
- name: ROLLOUT_POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: ROLLOUT_POD_UID
  valueFrom: {fieldRef: {fieldPath: metadata.uid}}
- name: ROLLOUT_POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
- name: ROLLOUT_NAMESPACES
  value: {{ ternary "*" (include "rollout.namespaces" . | fromJsonArray | join ",") (eq (include "rollout.isClusterWide" .) "true") | quote }}
- name: ROLLOUT_REDIS_URL
  value: {{ include "rollout.redisUrl" . | quote }}
{{- if include "rollout.redisSecret" . }}
- name: ROLLOUT_REDIS_PASSWORD_FILE
  value: /etc/rollout/redis/password
{{- end }}
{{- if include "rollout.redisCaSecret" . }}
- name: ROLLOUT_REDIS_CA_FILE
  value: /etc/rollout/redis-ca/ca.crt
{{- end }}
{{- if .Values.redis.jobSecrets }}
- name: ROLLOUT_SECRETS_DIR
  value: /etc/rollout/secrets
{{- end }}
- name: ROLLOUT_HTTP_HOST
  value: 0.0.0.0
- name: ROLLOUT_HTTP_PORT
  value: "8080"
{{- end -}}

{{- define "rollout.commonMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if include "rollout.redisSecret" . }}
- {name: redis-password, mountPath: /etc/rollout/redis, readOnly: true}
{{- end }}
{{- if include "rollout.redisCaSecret" . }}
- {name: redis-ca, mountPath: /etc/rollout/redis-ca, readOnly: true}
{{- end }}
{{- if .Values.redis.jobSecrets }}
- {name: job-secrets, mountPath: /etc/rollout/secrets, readOnly: true}
{{- end }}
{{- end -}}

{{- define "rollout.commonVolumes" -}}
- name: tmp
  emptyDir: {}
{{- with include "rollout.redisSecret" . }}
- name: redis-password
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $.Values.redis.auth.secretKey | quote }}, path: password}
{{- end }}
{{- with include "rollout.redisCaSecret" . }}
- name: redis-ca
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $.Values.redis.external.tls.caKey | quote }}, path: ca.crt}
{{- end }}
{{- with .Values.redis.jobSecrets }}
- name: job-secrets
  projected:
    sources:
      {{- range . }}
      - secret:
          name: {{ default .name .secret | quote }}
          items:
            {{- $folder := printf "%s/%s" .namespace .name }}
            {{- range .keys }}
            - {key: {{ . | quote }}, path: {{ printf "%s/%s" $folder . | quote }}}
            {{- end }}
      {{- end }}
{{- end }}
{{- end -}}

{{/* The same lines of every pod's spec. Arguments: root, settings. */}}
{{- define "rollout.podSpec" -}}
enableServiceLinks: false
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
{{- with .settings.nodeSelector }}
nodeSelector:
  {{- include "rollout.texts" . | trim | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- end -}}

{{/*
Without the versions of chart and program: a pod, the server's above all, is not restarted because of a label. Arguments: root,
component, settings, and checks to restart by.
*/}}
{{- define "rollout.podMetadata" -}}
labels:
  {{- with merge (dict) .settings.podLabels .root.Values.commonLabels }}
  {{- include "rollout.texts" . | trim | nindent 2 }}
  {{- end }}
  {{- include "rollout.selector" . | nindent 2 }}
  app.kubernetes.io/part-of: rolloutjob
{{- with merge (dict) (default (dict) .checks) .settings.podAnnotations }}
annotations:
  {{- include "rollout.texts" . | trim | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A password that is set by hand restarts those who use it. By a slow function: who may read pods must not guess it. */}}
{{- define "rollout.authCheck" -}}
{{- if .Values.redis.auth.password -}}
{{- $hard := derivePassword 1 "maximum" (trim .Values.redis.auth.password) .Release.Name .Release.Namespace -}}
{{- dict "rolloutjob.dev/auth-check" (sha256sum $hard | trunc 10) | toJson -}}
{{- else -}}
{}
{{- end -}}
{{- end -}}

{{/* A size as a number of bytes; empty where Kubernetes has written it in a way that the chart does not. */}}
{{- define "rollout.bytes" -}}
{{- $units := dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 -}}
{{- if regexMatch "^[0-9]+([.][0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?$" . -}}
{{- mulf (regexFind "^[0-9.]+" . | float64) (default 1 (get $units (regexFind "[A-Za-z]+$" .))) | printf "%.0f" -}}
{{- end -}}
{{- end -}}

{{/* Empty, or what an upgrade wants of the server's volume that Kubernetes refuses, and what to do. */}}
{{- define "rollout.redisVolumeFault" -}}
{{- $name := include "rollout.redisName" . -}}
{{- with lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- $settings := $.Values.redis.persistence -}}
{{- $there := dict -}}
{{- range dig "spec" "volumeClaimTemplates" (list) . | default list -}}
{{- $there = .spec -}}
{{- end -}}
{{- $has := ternary "a volume" "none" (not (empty $there)) -}}
{{- $wants := ternary "none" "a volume" (eq (include "rollout.redisStorage" $) "memory") -}}
{{- $differences := list -}}
{{- if ne $has $wants -}}
{{- $differences = append $differences (printf "%s is there, %s is wanted" $has $wants) -}}
{{- else if $there -}}
{{- $size := dig "resources" "requests" "storage" "" $there | toString -}}
{{- $old := include "rollout.bytes" $size -}}
{{- if and $old (ne $old (include "rollout.bytes" $settings.size)) -}}
{{- $differences = append $differences (printf "size %s is there, %s is wanted" $size $settings.size) -}}
{{- end -}}
{{- $class := dig "storageClassName" "" $there -}}
{{- if ne $class $settings.storageClass -}}
{{- $differences = append $differences (printf "storageClass %q is there, %q is wanted" $class $settings.storageClass) -}}
{{- end -}}
{{- if ne (toJson (dig "accessModes" (list) $there)) (toJson $settings.accessModes) -}}
{{- $differences = append $differences "other accessModes are there than are wanted" -}}
{{- end -}}
{{- end -}}
{{- with $differences -}}
{{- /* A pod is taken over by the new StatefulSet, but cannot be given a volume. */ -}}
{{- $command := printf "kubectl --namespace %s delete statefulset %s%s" $.Release.Namespace $name (ternary "" " --cascade=orphan" (empty $there)) -}}
{{- printf "redis.persistence: Kubernetes does not change the volume of a StatefulSet (%s). Set what is there, or take the StatefulSet away and upgrade again: %s" (join "; " .) $command -}}
{{- end -}}
{{- end -}}
{{- end -}}
