{{- /* An image with its registry, if there is one: a list of registry and name. */ -}}
{{- define "slackwater.image" -}}
{{ with index . 0 }}{{ . }}/{{ end }}{{ index . 1 }}
{{- end }}

{{- define "slackwater.own" -}}
{{ include "slackwater.image" (list .Values.image.registry (printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion))) }}
{{- end }}
