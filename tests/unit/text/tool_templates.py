"""Chat templates that write tools and calls, each in the manner of a family. The markers are the models' own."""

from __future__ import annotations

HERMES = """{{ bos_token }}{% if tools %}
{{- '<|im_start|>system\\nFunctions:\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool.function | tojson }}{% endfor %}
{{- '\\n</tools>' }}
{%- if messages[0].role == 'system' %}{{ '\\n' + messages[0].content }}{% endif %}{{ '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages if m.role != 'system' %}
{%- if m.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- elif m.tool_calls %}
{{- '<|im_start|>assistant' }}{% if m.content %}{{ '\\n' + m.content }}{% endif %}
{%- for call in m.tool_calls %}
{{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

QWEN3 = """{%- if tools %}{{ '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for m in messages %}
{%- set content = m.content if m.content is string else '' %}
{%- set role = 'user' if m.role == 'tool' else m.role %}
{{- '<|im_start|>' + role + '\\n' }}
{%- if m.reasoning_content is string and loop.index0 > 0 %}
{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}{{ content }}
{%- for call in m.tool_calls or [] %}
{%- if call.function %}{% set call = call.function %}{% endif %}
{{- '\\n<tool_call>\\n{"name": "' }}{{ call.name }}{{ '", "arguments": ' }}
{%- if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}{% endif %}
{{- '}\\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

QWEN_XML = """{% for tool in tools or [] %}{{ '<function><name>' ~ tool.function.name ~ '</name>' }}
{%- for name, given in tool.function.parameters.properties | items %}
{{- '<parameter>' ~ name ~ ': ' ~ given.description ~ '</parameter>' }}{% endfor %}{{ '</function>\\n' }}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}
{%- if m.tool_calls is defined and m.tool_calls is iterable %}{% for call in m.tool_calls %}
{{- '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for name, value in call.function.arguments | items %}
{{- '<parameter=' + name + '>\\n' }}{{ value if value is string else value | tojson }}{{ '\\n</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA = """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = "26 Jul 2024" %}{% endif %}
{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] | trim %}
{%- set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date_string + '\\n' + system + '<|eot_id|>' }}
{%- if tools is not none %}{% set first = messages[0]['content'] | trim %}{% set messages = messages[1:] %}
{{- '<|start_header_id|>user<|end_header_id|>\\n\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}{{ first + '<|eot_id|>' }}{% endif %}
{%- for m in messages %}
{%- if not (m.role == 'tool' or 'tool_calls' in m) %}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + m['content'] | trim + '<|eot_id|>' }}
{%- elif 'tool_calls' in m %}
{%- if not m.tool_calls | length == 1 %}{{ raise_exception('One call at a time!') }}{% endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{ '}<|eot_id|>' }}
{%- else %}{{ '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{%- if m.content is mapping or m.content is iterable and m.content is not string %}{{ m.content | tojson }}
{%- else %}{{ m.content }}{% endif %}{{ '<|eot_id|>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """{%- if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}
{%- set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}{{ bos_token }}
{%- set users = rest | selectattr('role', 'equalto', 'user') | list %}
{%- for m in rest %}
{%- if m.role == 'user' %}
{%- if tools is not none and m == users[-1] %}{{ '[AVAILABLE_TOOLS] [' }}
{%- for tool in tools %}{{ {'type': 'function', 'function': tool.function} | tojson }}{{ ', ' if not loop.last }}
{%- endfor %}{{ '][/AVAILABLE_TOOLS]' }}{% endif %}
{%- if loop.last and system is defined %}{{ '[INST] ' + system + '\\n\\n' + m.content + '[/INST]' }}
{%- else %}{{ '[INST] ' + m.content + '[/INST]' }}{% endif %}
{%- elif m.tool_calls is defined and m.tool_calls is not none %}{{ '[TOOL_CALLS] [' }}
{%- for call in m.tool_calls %}{% set out = call.function | tojson %}{{ out[:-1] }}
{%- if not call.id is defined or call.id | length != 9 %}
{{- raise_exception('A call id has nine characters!') }}{% endif %}
{{- ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last else ']' + eos_token }}{% endfor %}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
{%- elif m.role == 'tool' %}
{%- if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}
{{- raise_exception('A call id has nine characters!') }}{% endif %}
{{- '[TOOL_RESULTS] {"content": ' + m.content | string + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- else %}{{ raise_exception('Only user, assistant and tool roles!') }}{% endif %}
{%- endfor %}"""

KIMI = """{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson(separators=(',', ':')) }}<|im_end|>
{%- endif -%}
{%- for m in messages -%}
<|im_{{ m.role }}|>{{ m.get('name') or m.role }}<|im_middle|>
{%- if m.role == 'tool' -%}## Return of {{ m.tool_call_id }}\n{{ m.content }}
{%- else -%}{{ m.content }}
{%- if m.tool_calls -%}<|tool_calls_section_begin|>
{%- for call in m.tool_calls -%}<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{%- if call.function.arguments is string -%}{{ call.function.arguments }}
{%- else -%}{{ call.function.arguments | tojson }}{%- endif -%}<|tool_call_end|>{%- endfor -%}
<|tool_calls_section_end|>{%- endif -%}{%- endif -%}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""

DEEPSEEK = """{% set ns = namespace(system='') %}{% for m in messages if m.role == 'system' %}
{%- set ns.system = m.content %}{% endfor %}{{ bos_token }}{{ ns.system }}
{%- for m in messages %}
{%- if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}{% endif %}
{%- if m['role'] == 'assistant' and m['content'] is none %}{{ '<｜Assistant｜><｜tool▁calls▁begin｜>' }}
{%- for call in m['tool_calls'] %}
{{- '<｜tool▁call▁begin｜>' + call['type'] + '<｜tool▁sep｜>' + call['function']['name'] + '\\n```json\\n' }}
{{- call['function']['arguments'] + '\\n```<｜tool▁call▁end｜>' }}{% endfor %}
{{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' }}{% endif %}
{%- if m['role'] == 'assistant' and m['content'] is not none %}
{{- '<｜Assistant｜>' + m['content'].split('</think>')[-1] + '<｜end▁of▁sentence｜>' }}{% endif %}
{%- if m['role'] == 'tool' %}{{ '<｜tool▁output▁begin｜>' + m['content'] + '<｜tool▁output▁end｜>' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}"""

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

GEMMA = """{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('No system role!') }}{% endif %}
{%- for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('The roles must alternate!') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + m.content + '<end_of_turn>\\n' }}
{%- endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

WITH_TOOLS = {"hermes": HERMES, "qwen3": QWEN3, "qwen-xml": QWEN_XML, "llama": LLAMA, "mistral": MISTRAL, "kimi": KIMI}
ALL = {**WITH_TOOLS, "deepseek": DEEPSEEK, "chatml": CHATML, "gemma": GEMMA}
